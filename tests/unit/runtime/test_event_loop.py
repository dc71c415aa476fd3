"""What an instance tells of itself is read beside the event loop, which answers requests meanwhile."""

import sys
import threading
from typing import Any

FILES = {"open", "os.listdir", "os.scandir"}


class FileWatch:
    """The files that a thread touches while it watches; hooks of this kind stay until the process ends."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._thread: int | None = None
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._thread == threading.get_ident() and event in FILES:
            self.seen.append(f"{event} {arguments[0]}")

    def __enter__(self) -> "FileWatch":
        self._thread = threading.get_ident()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread = None


async def test_neither_reports_nor_status_nor_metrics_read_files_on_the_event_loop(
    world: Any, artifacts: Any
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running(heartbeat=0.01) as instance, world.admin_client(instance) as client:
        await world.until(world.serving(instance, 1))
        # Whatever is only imported when it is first asked for.
        assert (await client.get("/admin/status")).status_code == 200
        reports: list[object] = []
        report = world.registry.report

        async def counted(given: Any) -> None:
            reports.append(given)
            await report(given)

        world.registry.report = counted
        with FileWatch() as watch:
            status = (await client.get("/admin/status")).json()
            assert (await client.get("/metrics")).status_code == 200
            await world.until(lambda: len(reports) > 2)
        assert watch.seen == []
        assert list(status["tiers"].values()) == [{"place": "device", "seconds": 0.0}]
        assert status["report"]["memory_used_bytes"] > 0

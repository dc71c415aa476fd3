"""What an instance does when it may open nothing more, and what keeps clients from taking it there."""

import errno
import os
import threading
from typing import Any

import pytest

import runtime.instance


async def test_a_report_that_cannot_be_written_is_not_the_last_one(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        has_failed = threading.Event()

        def refuse(_: str) -> None:
            has_failed.set()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as full:
            full.setattr(runtime.instance, "memory_use", refuse)
            await world.until(has_failed.is_set)
        await world.publish(artifacts.push("v2", seed=2))

        async def is_reported() -> bool:
            report = await world.report()
            return report.actual is not None and report.actual.revision == 2

        await world.until(is_reported)
        assert instance.is_live

"""The real process against a real HTTP registry and a file store, under load."""

import asyncio
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from weightshift.contracts.instance import CandidatePhase

DEADLINE = 30.0


@pytest.mark.parametrize(("mode", "pauses"), [("double-buffer", 0), ("in-place", 2)])
async def test_a_swap_under_load_fails_no_request_and_mixes_no_weights(
    bench: Any, control: Any, tmp_path: Path, mode: str, pauses: int
) -> None:
    first = await control.publish("v41")
    async with bench.running(control, tmp_path, SWAP_MODE=mode) as runtime:
        await bench.until(runtime.is_ready)
        async with runtime.traffic().running() as traffic:
            await bench.until(lambda: traffic.artifacts["v41"] > 100)
            second = await control.publish("v42")
            await bench.until(lambda: traffic.artifacts["v42"] > 100)
            back = await control.publish("v41")
            await bench.until(lambda: runtime.serves(back.revision))
        assert traffic.problems == []
        assert (first.revision, second.revision, back.revision) == (1, 2, 3)
        exposition = (await runtime.admin.get("/metrics")).text
        tiers = (await runtime.admin.get("/admin/status")).json()["tiers"].values()
    assert sorted(tier["place"] for tier in tiers) == ["device", "host"]
    assert all(tier["seconds"] < 1 for tier in tiers)
    assert re.search(rf"admission_pause_seconds_count\{{.*\}} {pauses}\.0", exposition)
    answered = re.findall(r'requests_total\{artifact="(v4\d)",code="(\d+)".*\} (\d+)\.0', exposition)
    counted = Counter[str]()
    for artifact, code, count in answered:
        counted[artifact] += int(count)
        assert code == "200" or int(count) == 0
    assert counted == traffic.artifacts


async def test_a_candidate_that_does_not_fit_leaves_what_serves_alone(
    bench: Any, control: Any, tmp_path: Path
) -> None:
    await control.publish("v41")
    async with bench.running(control, tmp_path) as runtime:
        await bench.until(runtime.is_ready)
        async with runtime.traffic().running() as traffic:
            broken = await control.publish("v45")

            async def has_failed() -> bool:
                candidate = (await control.report()).candidate
                return candidate is not None and candidate.phase is CandidatePhase.FAILED

            await bench.until(has_failed)
            assert await runtime.is_ready()
        report = await control.report()
        assert traffic.problems == []
        assert report.candidate is not None
        assert report.actual is not None
        assert report.candidate.error is not None
        assert report.candidate.error.type == "IncompatibleModel"
        assert report.candidate.error.permanent
        assert (report.desired_revision, report.actual.revision) == (broken.revision, 1)
        assert report.ready


async def test_below_the_serve_floor_the_instance_refuses(bench: Any, control: Any, tmp_path: Path) -> None:
    await control.publish("v41")
    async with bench.running(control, tmp_path) as runtime:
        await bench.until(runtime.is_ready)
        floor = await control.publish("v45", raise_serve_floor=True)
        assert floor.serve_floor == floor.revision

        await bench.until(runtime.is_unready)
        refused = await runtime.data.post("/predict", content=runtime.expectations.bodies[0])
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "NotServing"
        exposition = (await runtime.admin.get("/metrics")).text
        assert re.search(r"unready_requests_total\{.*\} 1\.0", exposition)
        healthy = await control.publish("v41", raise_serve_floor=True)
        await bench.until(lambda: runtime.serves(healthy.revision))
        assert await runtime.is_ready()


async def test_sigterm_drains_without_losing_a_request(bench: Any, control: Any, tmp_path: Path) -> None:
    await control.publish("v41")
    async with bench.running(control, tmp_path) as runtime:
        await bench.until(runtime.is_ready)
        async with runtime.traffic().running() as traffic:
            await bench.until(lambda: traffic.artifacts["v41"] > 50)
            runtime.process.send_signal(signal.SIGTERM)

            # A load balancer stops sending once a probe says so; until then requests still count.
            await bench.until(runtime.is_unready)
        assert traffic.problems == []
        assert await asyncio.wait_for(runtime.process.wait(), DEADLINE) == 0
    report = await control.report()
    assert report.draining
    assert not report.ready


async def test_after_kill_9_it_starts_from_the_cache_without_the_registry(
    bench: Any, control: Any, tmp_path: Path
) -> None:
    await control.publish("v41")
    async with bench.running(control, tmp_path) as runtime:
        await bench.until(runtime.is_ready)
        await bench.until(lambda: (tmp_path / "targets").exists() and any((tmp_path / "targets").iterdir()))
        runtime.process.kill()
        await runtime.process.wait()
    control.registry.available = False
    async with bench.running(control, tmp_path) as runtime:
        await bench.until(runtime.is_ready)
        traffic = runtime.traffic()
        await traffic.send(0)
        assert traffic.problems == []
        control.registry.available = True
        target = await control.publish("v42")
        await bench.until(lambda: runtime.serves(target.revision))

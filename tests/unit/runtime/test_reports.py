"""When an instance reports: what serves at once, how far a candidate is a little later."""

from typing import Any

import pytest

from runtime import registry_client
from tests.unit.runtime.swap_harness import DryRuns
from weightshift.contracts.instance import CandidatePhase, InstanceReport
from weightshift.registry.client import RegistryClient

LONG = 60.0


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[InstanceReport]:
    """Every report that is sent, in order."""
    sent: list[InstanceReport] = []
    send = RegistryClient.report

    async def kept(client: RegistryClient, report: InstanceReport) -> None:
        await send(client, report)
        sent.append(report)

    monkeypatch.setattr(RegistryClient, "report", kept)
    return sent


async def test_a_swap_is_one_report_however_many_phases_it_has(
    world: Any, artifacts: Any, reports: list[InstanceReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "_PROGRESS_SECONDS", LONG)
    await world.publish(artifacts.push("v1", seed=1))
    async with world.running(heartbeat=LONG) as instance:
        await world.until(lambda: bool(reports) and reports[-1].ready)
        reports.clear()
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(lambda: bool(reports))
        (report,) = reports
        assert (report.actual and report.actual.revision, report.ready) == (2, True)
        assert instance._reporter._progress is None


async def test_a_candidate_that_takes_long_is_reported_on_its_way(
    world: Any, artifacts: Any, reports: list[InstanceReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    dry_runs = DryRuns(monkeypatch)
    dry_runs.arm()
    await world.publish(artifacts.push("v1"))
    async with world.running(heartbeat=LONG):

        def is_told() -> bool:
            candidate = reports[-1].candidate if reports else None
            return candidate is not None and candidate.phase is CandidatePhase.DRY_RUNNING

        await world.until(is_told)
        dry_runs.gate.set()
        await world.until(lambda: reports[-1].ready)

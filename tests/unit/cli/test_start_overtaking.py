"""A repeated start that comes before the first attempt's release is admitted, and known by its key."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.cli.test_release_commands import KEYED, recorded
from weightshift.cli import start
from weightshift.contracts.release import ReleasePhase, ReleaseRequest
from weightshift.errors import ReleaseActive, TemporalUnreachable

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_LOOK_AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(start, "_LONGEST_ADMISSION_SECONDS", 0.2)


def running(
    monkeypatch: pytest.MonkeyPatch, releases: Any, status: Any, *, refusals: float = float("inf")
) -> list[ReleaseRequest]:
    """So many starts are refused while a release with this status runs; returns what they asked for."""
    asked: list[ReleaseRequest] = []

    async def refuse(request: ReleaseRequest) -> str:
        asked.append(request)
        if len(asked) <= refusals:
            raise ReleaseActive("a release of test/ranker is already running")
        return "run-of-this-start"

    monkeypatch.setattr(releases, "start", refuse)
    releases.statuses = [status]
    return asked


def test_it_waits_for_the_admission_and_attaches(
    run: Run, releases: Any, registry: Any, make_status: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = recorded(run, releases, registry)
    asked = running(monkeypatch, releases, make_status(phase=ReleasePhase.ADMITTING))
    registry.answers["releases"] = lambda _: (record,) if len(asked) >= 5 else ()
    result = run(*KEYED, "--again")
    assert (result.code, record.release_id in result.out, len(asked)) == (0, True, 5)


def test_a_first_attempt_that_is_refused_leaves_room_for_the_second(
    run: Run, releases: Any, registry: Any, make_status: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.answers["releases"] = ()
    asked = running(monkeypatch, releases, make_status(phase=ReleasePhase.ADMITTING), refusals=2)
    result = run(*KEYED, "--again")
    assert (result.code, asked[-1].release_id in result.out, len(asked)) == (0, True, 3)


def test_another_release_is_a_conflict_at_once(
    run: Run, releases: Any, registry: Any, make_status: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.answers["releases"] = ()
    asked = running(monkeypatch, releases, make_status(phase=ReleasePhase.OBSERVING))
    assert (run(*KEYED, "--again").code, len(asked)) == (4, 1)
    releases.statuses = [make_status(phase=ReleasePhase.ADMITTING)]
    assert (run(*KEYED[:-2], "--again").code, len(asked)) == (4, 2), "nothing to recognise it by"


def test_an_admission_that_does_not_end_is_a_conflict_in_the_end(
    run: Run, releases: Any, registry: Any, make_status: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.answers["releases"] = ()
    asked = running(monkeypatch, releases, make_status())
    releases.failure = TemporalUnreachable("no worker answers")
    assert run(*KEYED, "--again").code == 4
    assert len(asked) > 1

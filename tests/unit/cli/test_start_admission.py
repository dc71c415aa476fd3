"""A start that nobody waits for: it ends when its release is admitted, or with what it was refused with."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.cli.test_release_commands import KEYED, recorded
from weightshift.cli import start
from weightshift.contracts.release import Outcome, ReleasePhase
from weightshift.errors import InvalidPlan, NoCanaryCapacity, ReleaseActive, TemporalUnreachable

Run = Callable[..., Any]
START = ("release", "start", "ranker", "v2", "-e", "test")


@pytest.mark.parametrize(
    ("refusal", "code"),
    [(InvalidPlan("min_samples: too many"), 2), (NoCanaryCapacity(), 2), (ReleaseActive("by another"), 4)],
)
def test_what_admission_refuses_is_no_start(run: Run, releases: Any, refusal: Exception, code: int) -> None:
    releases.admission = refusal
    result = run(*START)
    assert (result.code, str(refusal) in result.err, "started" in result.out) == (code, True, False)
    assert json.loads(run(*START, "--json").out)["error"]["type"] == type(refusal).__name__


def test_an_admission_that_nobody_answers_for_is_told_and_the_start_counts(
    run: Run, releases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_ADMISSION_ANSWERS_SECONDS", 0.01)
    releases.admission = asyncio.Event()
    result = run(*START)
    assert (result.code, "v2 started" in result.out) == (0, True)
    assert "whether the release is admitted is not known: nobody has answered for 0.01 s" in result.err
    releases.admission = TemporalUnreachable("Temporal is away")
    result = run(*START)
    assert (result.code, "not known: Temporal is away" in result.err) == (0, True)


def test_who_waits_follows_the_release_that_was_started(run: Run, releases: Any, make_status: Any) -> None:
    releases.admission = asyncio.Event()  # which is never set: following it shows a refusal by itself
    releases.statuses = [make_status(outcome=Outcome.PROMOTED, phase=ReleasePhase.DONE)]
    assert run(*START, "--wait").code == 0
    assert run("release", "watch", "ranker", "-e", "test").code == 0
    assert releases.followed == ["run-of-this-start", ""], "who watches, the newest"


def test_who_attaches_follows_the_run_on_record(run: Run, releases: Any, registry: Any) -> None:
    recorded(run, releases, registry, run_id="run-on-record")
    run(*KEYED, "--wait")
    assert releases.followed == ["run-on-record"]

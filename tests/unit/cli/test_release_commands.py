import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from weightshift.contracts.identity import Service
from weightshift.contracts.release import Intervention, Outcome, Parachute, ReleasePhase, ReleaseRecord
from weightshift.contracts.traffic import TrafficSplit
from weightshift.contracts.verdict import GateResult, GateVerdict, StageOutcome, StageVerdict
from weightshift.errors import (
    InvalidPlan,
    RegistryUnreachable,
    ReleaseActive,
    ReleaseTerminated,
    TemporalUnreachable,
)

Run = Callable[..., Any]
SERVICE = Service(model="ranker", environment="test")
IN_TEST = ("ranker", "-e", "test")


KEYED = ("release", "start", *IN_TEST[:1], "v2", *IN_TEST[1:], "--operator", "ci", "--request-key", "build-7")


def recorded(run: Run, releases: Any, registry: Any, **changes: Any) -> ReleaseRecord:
    """Start with a request key once, and return what the registry would hold of it."""
    registry.answers["releases"] = ()
    assert run(*KEYED).code == 0
    ((_, request),) = releases.calls
    releases.calls.clear()
    record = ReleaseRecord(
        release_id=request.release_id,
        service=SERVICE,
        artifact_id="v2",
        operator="ci",
        epoch=1,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        request_key="build-7",
        request_digest=request.digest(),
    ).model_copy(update=changes)
    registry.answers["releases"] = (record,)
    return record


def test_a_repeat_attaches_to_the_active_release(run: Run, releases: Any, registry: Any) -> None:
    record = recorded(run, releases, registry)
    result = run(*KEYED)
    assert (result.code, releases.calls) == (0, [])
    assert record.release_id in result.out
    assert run(*KEYED, "--wait").code == 1, "it follows the release, which has no outcome yet"
    assert [name for name, *_ in releases.calls] == ["wait"]


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.PROMOTED, 0), (Outcome.ROLLED_BACK, 3)])
def test_a_repeat_gives_the_recorded_outcome(
    run: Run, releases: Any, registry: Any, outcome: Outcome, code: int
) -> None:
    recorded(run, releases, registry, outcome=outcome, reason="as it ended")
    result = run(*KEYED, "--wait")
    assert (result.code, releases.calls) == (code, [])
    assert "as it ended" in result.out


def test_an_empty_request_key_is_refused(run: Run, releases: Any) -> None:
    result = run("release", "start", *IN_TEST[:1], "v2", *IN_TEST[1:], "--request-key", "")
    assert (result.code, releases.calls) == (2, [])
    assert "--request-key" in result.err


def test_a_paused_release_says_so(run: Run, releases: Any, make_status: Any) -> None:
    releases.statuses = [make_status(paused=True)]
    for verb in ("pause", "status"):
        assert "paused" in run("release", verb, *IN_TEST).out


def test_a_request_key_names_one_request_for_ever(run: Run, releases: Any, registry: Any) -> None:
    recorded(run, releases, registry)
    result = run(*KEYED, "--reason", "another")
    assert (result.code, releases.calls) == (4, [])
    assert "build-7" in result.err


def test_start_asks_for_a_release_and_says_what_is_next(run: Run, releases: Any, registry: Any) -> None:
    registry.answers["releases"] = ()
    result = run(
        "release",
        "start",
        "ranker",
        "v2",
        "-e",
        "test",
        "--operator",
        "ada",
        "--reason",
        "new",
        "--request-key",
        "k1",
    )
    assert result.code == 0
    assert "next: weightshift release watch ranker -e test" in result.out
    ((_, request),) = releases.calls
    assert (request.service, request.artifact_id, request.operator) == (SERVICE, "v2", "ada")
    assert (request.reason, request.request_key) == ("new", "k1")
    assert request.release_id in result.out


def test_start_prints_the_release_id_as_json(run: Run, releases: Any) -> None:
    result = run("release", "start", "ranker", "v2", "-e", "test", "--json")
    ((_, request),) = releases.calls
    assert json.loads(result.out) == {"release_id": request.release_id}


def test_start_reads_a_plan(run: Run, releases: Any, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("stages: [50, 100]\nwindow: 2m\n")
    assert run("release", "start", "ranker", "v2", "-e", "test", "--plan", str(plan)).code == 0
    ((_, request),) = releases.calls
    assert [stage.weight for stage in request.plan.stages] == [50, 100]
    assert request.plan.window.total_seconds() == 120


def test_status_shows_what_the_judge_says(run: Run, releases: Any, make_status: Any) -> None:
    releases.statuses = [make_status(judging="7 of 200 samples")]
    assert "judging   7 of 200 samples" in run("release", "status", *IN_TEST).out
    assert json.loads(run("release", "status", *IN_TEST, "--json").out)["judging"] == "7 of 200 samples"


def test_status_shows_split_verdict_and_the_way_back(run: Run, releases: Any, make_status: Any) -> None:
    gate = GateResult(gate="p99 ratio 1.1", verdict=GateVerdict.INSUFFICIENT, detail="12 of 200")
    verdict = StageVerdict(outcome=StageOutcome.INCONCLUSIVE, reason="too early", gates=(gate,))
    releases.statuses = [make_status(split=TrafficSplit.with_canary(25), verdict=verdict)]
    result = run("release", "status", *IN_TEST)
    assert result.code == 0
    for text in ("canary #####............... 25 %", "way back  instant", "p99 ratio 1.1: insufficient"):
        assert text in result.out


@pytest.mark.parametrize(
    ("verb", "effect"),
    [
        ("pause", "it stays at this stage"),
        ("resume", "it goes on"),
        ("promote", "the rest of the window at 5 % is skipped"),
    ],
)
def test_steering_asks_once_and_shows_the_state_and_the_effect(
    run: Run, releases: Any, verb: str, effect: str
) -> None:
    result = run("release", verb, *IN_TEST, "--operator", "ada", "--reason", "lunch")
    assert result.code == 0
    assert releases.calls == [(verb, SERVICE, Intervention(operator="ada", reason="lunch"))]
    assert f"test/ranker v2 observing; {effect}" in result.out


def test_list_shows_what_is_recorded(run: Run, registry: Any) -> None:
    record = ReleaseRecord(
        release_id="R1",
        service=SERVICE,
        artifact_id="v2",
        operator="ada",
        epoch=1,
        outcome=Outcome.PROMOTED,
        started_at=datetime(2026, 1, 2, tzinfo=UTC),
    )
    registry.answers["releases"] = (record,)
    result = run("release", "list", *IN_TEST)
    assert result.code == 0
    assert "promoted" in result.out
    assert json.loads(run("release", "list", *IN_TEST, "--json").out)["releases"][0]["release_id"] == "R1"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ReleaseActive("release R0 by bob is active; wait for it."), 4),
        (TemporalUnreachable(), 5),
        (RuntimeError("a bug"), 1),
    ],
)
def test_failures_are_one_message_and_an_exit_code(
    run: Run, releases: Any, failure: Exception, code: int
) -> None:
    releases.failure = failure
    result = run("release", "start", "ranker", "v2", "-e", "test")
    assert result.code == code
    assert str(failure) in result.err
    assert "Traceback" not in result.err
    result = run("release", "start", "ranker", "v2", "-e", "test", "--json")
    assert json.loads(result.out)["error"]["type"] == type(failure).__name__


def test_an_impossible_name_is_bad_input(run: Run, releases: Any) -> None:
    result = run("release", "start", "ranker", "../v2", "-e", "test")
    assert result.code == 2
    assert "artifact_id: " in result.err
    assert releases.calls == []


def test_a_release_refused_at_admission_is_shown(run: Run, releases: Any, make_status: Any) -> None:
    releases.statuses = [make_status(phase=ReleasePhase.ADMITTING)]
    releases.refusal_of = InvalidPlan("min_samples: 200 cannot be reached")
    result = run("release", "status", *IN_TEST, "--json")
    assert (result.code, json.loads(result.out)["outcome"]) == (0, "refused")
    assert "cannot be reached" in result.out


def test_a_terminated_release_says_so_and_what_is_next(run: Run, releases: Any, make_status: Any) -> None:
    releases.statuses = [make_status(held=True, waiting_for="evidence")]
    releases.refusal_of = ReleaseTerminated("it was terminated (bad advice); next: roll back")
    result = run("release", "status", *IN_TEST)
    assert "observing 5 %, terminated" in result.out
    assert "5 %, as last read back" in result.out
    assert "weightshift release rollback ranker -e test" in result.out
    assert "waiting for" not in result.out
    document = json.loads(run("release", "status", *IN_TEST, "--json").out)
    assert (document["outcome"], document["held"]) == ("abandoned", False)


def test_what_was_refused_at_admission_is_listed_once(run: Run, releases: Any, registry: Any) -> None:
    known, refused, earlier = (
        ReleaseRecord(
            release_id=f"R{day}",
            service=SERVICE,
            artifact_id="v2",
            operator="ada",
            epoch=0,
            outcome=Outcome.REFUSED,
            reason=f"because {day}",
            started_at=datetime(2026, 1, day, tzinfo=UTC),
        )
        for day in (3, 2, 1)
    )
    registry.answers["releases"] = (known, earlier)
    releases.refusals = (known.model_copy(update={"reason": "twice"}), refused)
    listed = json.loads(run("release", "list", *IN_TEST, "--json").out)["releases"]
    assert [one["reason"] for one in listed] == ["because 3", "because 2", "because 1"]
    releases.failure = TemporalUnreachable("Temporal is away")
    result = run("release", "list", *IN_TEST)
    assert ("because 3" in result.out, "because 2" in result.out) == (True, False)
    assert "not listed: Temporal is away" in result.err


def test_a_parachute_is_shown_with_its_end(run: Run, releases: Any, make_status: Any) -> None:
    until = datetime(2026, 1, 2, 3, 30, tzinfo=UTC)
    parachute = make_status(phase=ReleasePhase.PARACHUTE, outcome=Outcome.PROMOTED, way_back_until=until)
    releases.statuses = [parachute]
    out = run("release", "status", *IN_TEST).out
    assert f"instant, until {until.astimezone():%Y-%m-%d %H:%M:%S}" in out
    assert "rest of the parachute is skipped" in run("release", "promote", *IN_TEST).out


def test_a_parachute_that_lost_an_instance_is_no_instant_way_back(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    parachute = Parachute(revision=7, instances=("canary-0",), otherwise="reload ~4 s")
    releases.statuses = [make_status(phase=ReleasePhase.PARACHUTE, parachute=parachute)]
    registry.answers["instances"] = ()
    assert "reload ~4 s: canary-0 is lost" in run("release", "status", *IN_TEST).out
    document = run("release", "status", *IN_TEST, "--json").out
    assert json.loads(document)["way_back"] == "reload ~4 s: canary-0 is lost"
    registry.answers["instances"] = RegistryUnreachable("it is away")
    told = run("release", "status", *IN_TEST)
    assert (told.code, "instant" in told.out) == (0, True)
    assert "whether the parachute is whole is not known: it is away" in told.err


@pytest.mark.parametrize("outcome", [Outcome.ROLLED_BACK, Outcome.REFUSED])
def test_there_is_no_way_back_from_what_went_back(
    run: Run, releases: Any, make_status: Any, outcome: Outcome
) -> None:
    releases.statuses = [make_status(phase=ReleasePhase.DONE, outcome=outcome)]
    assert "instant" not in run("release", "status", *IN_TEST).out


def test_who_has_no_stack_is_told_how_to_get_one(
    run: Run, releases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases.failure = TemporalUnreachable("Temporal does not answer.")
    assert "weightshift local up" in run("release", "status", *IN_TEST).err
    monkeypatch.setenv("WEIGHTSHIFT_TEMPORAL_ADDRESS", "temporal:7233")
    assert "weightshift local up" not in run("release", "status", *IN_TEST).err

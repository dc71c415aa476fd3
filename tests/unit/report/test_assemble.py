"""From audit rows to a report."""

from collections.abc import Callable
from typing import Any

from tests.unit.report.conftest import Chain, Rows, after, curve, stage
from weightshift.contracts.release import Outcome, ReleaseRecord
from weightshift.contracts.verdict import StageOutcome
from weightshift.report.assemble import assemble


def test_the_header_says_who_what_why_and_the_way_back(
    record: ReleaseRecord, rows: Callable[[], Rows]
) -> None:
    report = assemble(record, rows(), now=after(500))
    assert (report.operator, report.artifact_id, report.replaces) == ("ada", "v2", "v1")
    assert (report.why, report.outcome) == ("better ranking", Outcome.ROLLED_BACK)
    assert (report.duration_seconds, report.way_back) == (100.0, "none")
    assert report.notes == ()


def test_a_running_release_lasts_until_now(record: ReleaseRecord, rows: Callable[[], Rows]) -> None:
    running = record.model_copy(update={"outcome": None, "finished_at": None})
    report = assemble(running, rows(), now=after(500))
    assert (report.outcome, report.duration_seconds, report.way_back) == (None, 500.0, "instant")


def test_steps_and_splits_are_at_the_time_they_happened(
    record: ReleaseRecord, rows: Callable[[], Rows]
) -> None:
    report = assemble(record, rows(), now=after(500))
    assert [(change.at, change.split.canary) for change in report.splits] == [
        (after(10), 5),
        (after(90.1), 0),
    ]
    assert report.steps[2].at == after(5), "and not a minute later, when the row was recorded"
    assert report.steps[0].at == after(60), "a row without a time of its own has that of its recording"
    assert [step.number for step in report.steps] == [1, 2, 3, 4, 5, 6]


def test_a_stage_that_was_judged_twice_is_shown_as_judged_last(
    record: ReleaseRecord, rows: Callable[[], Rows]
) -> None:
    (one,) = assemble(record, rows(), now=after(500)).stages
    assert (one.weight, one.started_at, one.ended_at) == (5, after(10), after(90))
    assert (one.outcome, one.canary_requests) == (StageOutcome.BREACH, 300)
    assert one.curve == curve(20, 6)
    assert [(limit.maximum, limit.ratio) for limit in one.error_limits] == [(0.03, None), (None, 1.1)]
    assert [limit.ratio for limit in one.latency_limits] == [1.5], "the p90 gate is no limit of a p99"


def test_instances_targets_and_approvals_are_listed(record: ReleaseRecord, rows: Callable[[], Rows]) -> None:
    report = assemble(record, rows(), now=after(500))
    (instance,) = report.instances
    assert (instance.instance_id, instance.phase, instance.bytes_done) == (
        "canary-0",
        "downloading",
        5_000_000,
    )
    (target,) = report.targets
    assert (target.cohort, target.revision, target.previous) == ("canary", 8, "revision 7 (v1)")
    (approval,) = report.approvals
    assert (approval.of, approval.operator, approval.at) == ("artifact v2", "bob", after(-90))


def test_what_an_earlier_build_did_not_record_has_no_date(record: ReleaseRecord, chain: Chain) -> None:
    del chain.rows[1].data["artifact_approved_at"]
    (approval,) = assemble(record, chain.rows, now=after(500)).approvals
    assert (approval.operator, approval.at) == ("bob", None)


def test_an_approval_of_the_release_is_listed_once(record: ReleaseRecord, chain: Chain) -> None:
    given: dict[str, Any] = {
        "approval_id": "A1",
        "service": {"model": "ranker", "environment": "test"},
        "release_id": "R1",
        "operator": "eve",
        "reason": "looks good",
        "created_at": after(30).isoformat(),
    }
    chain.add("approve", "looks good", seconds=30, operator="eve", approval=given)
    chain.add("publish", "stable to v2", seconds=40, approvals=[given])
    report = assemble(record, chain.rows, now=after(500))
    assert [one.approval_id for one in report.approvals if one.approval_id] == ["A1"]


def test_a_row_that_was_changed_is_named(record: ReleaseRecord, chain: Chain) -> None:
    chain.rows[2] = chain.rows[2].model_copy(update={"summary": "nothing happened"})
    (note,) = assemble(record, chain.rows, now=after(500)).notes
    assert note.startswith("Audit rows 3 are not as they were written")


def test_what_another_build_wrote_is_left_out_and_named(record: ReleaseRecord, chain: Chain) -> None:
    chain.tell("observing", "odd", seconds=91, splits=7, verdict={"outcome": "splendid"}, stage=stage(5, 10))
    chain.tell("observing", "odder", seconds=92, instances=[{"who": "canary-0"}])
    report = assemble(record, chain.rows, now=after(500))
    assert report.notes == ("Audit rows 7, 8 hold something this build cannot read; it is left out.",)
    assert len(report.stages) == 1


def test_without_any_row_the_report_says_so(record: ReleaseRecord) -> None:
    running = record.model_copy(update={"outcome": None})
    report = assemble(running, (), now=after(500))
    assert report.notes == ("The audit chain holds nothing of this release.",)
    assert (report.steps, report.way_back) == ((), "not recorded")

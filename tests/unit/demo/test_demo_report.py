from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from weightshift.contracts.release import Outcome
from weightshift.local.demo_report import DemoFigures, DemoRelease, describe, report_table

TRAFFIC = {
    "requests": 12345,
    "failed": 0,
    "misrouted": 0,
    "artifacts": {"v42": {"requests": 9000, "p50_ms": 2.5, "p99_ms": 11.25}},
    "failures": [],
}


def release(artifact_id: str, announced: Outcome, outcome: Outcome | None = None) -> DemoRelease:
    return DemoRelease(
        artifact_id=artifact_id,
        announced=announced,
        outcome=outcome or announced,
        reason="because",
        seconds=12.34,
    )


RELEASES = (
    release("v42", Outcome.PROMOTED),
    release("v43", Outcome.ROLLED_BACK),
    release("v44", Outcome.ROLLED_BACK),
    release("v45", Outcome.REFUSED),
)


def figures(**changes: Any) -> DemoFigures:
    return DemoFigures(releases=RELEASES, traffic=TRAFFIC, rollback_ms=41.6, seconds=150.4).model_copy(
        update=changes
    )


def test_the_last_line_holds_every_figure() -> None:
    assert figures().line() == (
        "demo: requests=12345 failed=0 misrouted=0 promoted=1 rolled_back=2 refused=1 "
        "rollback_ms=42 seconds=150"
    )


def test_a_run_as_announced_is_fine() -> None:
    assert figures().ok


@pytest.mark.parametrize(
    "changes",
    [
        {"traffic": TRAFFIC | {"failed": 1}},
        {"traffic": TRAFFIC | {"misrouted": 1}},
        {"rollback_ms": None},
        {"releases": (*RELEASES[:3], release("v45", Outcome.REFUSED, Outcome.PROMOTED))},
        {"releases": (*RELEASES[:3], RELEASES[3].model_copy(update={"outcome": None}))},
    ],
)
def test_anything_else_is_not(changes: dict[str, Any]) -> None:
    assert not figures(**changes).ok


def test_the_table_shows_outcomes_and_latencies() -> None:
    wrong = release("v45", Outcome.REFUSED, Outcome.PROMOTED)
    console = Console(file=StringIO(), width=160)
    console.print(report_table(figures(releases=(*RELEASES[:3], wrong))))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("9,000", "2.5", "11.2", "rolled back", "no, refused was"):
        assert part in text


def test_a_release_in_one_line() -> None:
    assert describe(RELEASES[1]) == "v43 rolled back after 12.3 s: because"

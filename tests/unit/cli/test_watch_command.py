"""Following a release: `release watch`, and `release start --wait`."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from weightshift.cli import follow as follow_module
from weightshift.cli.output import Output
from weightshift.cli.release_view import JudgingLog
from weightshift.contracts.identity import Service
from weightshift.contracts.release import Outcome, ReleasePhase

Run = Callable[..., Any]
IN_TEST = ("ranker", "-e", "test")
STARTED = ("start", "ranker", "v2", "-e", "test", "--wait")
START = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("outcome", "code"), [(Outcome.PROMOTED, 0), (Outcome.ROLLED_BACK, 3), (Outcome.REFUSED, 3)]
)
@pytest.mark.parametrize("verb", [("watch", *IN_TEST), STARTED])
def test_following_ends_with_the_outcome(
    run: Run, releases: Any, make_status: Any, outcome: Outcome, code: int, verb: tuple[str, ...]
) -> None:
    end = make_status(outcome=outcome, phase=ReleasePhase.DONE, reason="gate p99 breached")
    releases.statuses = [make_status(), make_status(), end]
    result = run("release", *verb)
    assert result.code == code
    assert result.out.count("admitted") == 1
    assert f"test/ranker v2 {outcome}: gate p99 breached" in result.out


def test_following_tells_what_the_judge_says_when_its_words_change(
    run: Run, releases: Any, make_status: Any
) -> None:
    said = [
        "nothing is judged yet",
        "7 of 200 samples",
        "14 of 200 samples",
        "gate p99: insufficient 1,200.5",
    ]
    end = make_status(outcome=Outcome.PROMOTED, phase=ReleasePhase.DONE)
    releases.statuses = [*(make_status(judging=text) for text in said), end]
    out = run("release", "watch", *IN_TEST).out
    lines = [line.partition("  ")[2] for line in out.splitlines() if "judging" in line]
    assert lines == [f"5 %: judging: {text}" for text in (said[0], said[1], said[3])]


def test_a_judges_figures_are_told_once_a_minute(make_status: Any) -> None:
    log = JudgingLog()
    told = [
        log.new_line(make_status(judging=f"{seconds} of 200 samples"), START + timedelta(seconds=seconds))
        for seconds in (0, 59, 61, 62)
    ]
    assert [line is not None for line in told] == [True, False, True, False]
    assert log.new_line(make_status(judging="61 of 200 samples"), START + timedelta(hours=1)) is None
    assert log.new_line(make_status(judging=""), START + timedelta(hours=1)) is None


def test_following_in_json_prints_the_last_status_only(run: Run, releases: Any, make_status: Any) -> None:
    releases.statuses = [make_status(), make_status(outcome=Outcome.PROMOTED)]
    result = run("release", "watch", *IN_TEST, "--json")
    assert json.loads(result.out)["outcome"] == "promoted"


def test_following_on_a_terminal_redraws_one_panel(
    run: Run, releases: Any, make_status: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    releases.statuses = [make_status(), make_status(outcome=Outcome.PROMOTED, phase=ReleasePhase.DONE)]
    result = run("release", "watch", *IN_TEST)
    assert result.code == 0
    assert "\x1b[1A" in result.out
    assert "canary #................... 5 %" in result.out


def test_a_job_that_follows_a_release_ends_when_it_is_held(run: Run, releases: Any, make_status: Any) -> None:
    releases.statuses = [make_status(held=True, reason="12 of 200 samples"), make_status()]
    result = run("release", *STARTED)
    assert result.code == 6
    assert "12 of 200 samples (held)" in result.out
    assert "next: wait for evidence, weightshift release promote ranker -e test, or rollback" in result.out


def test_watching_a_held_release_tells_each_hold_and_goes_on_to_the_outcome(
    run: Run, releases: Any, make_status: Any
) -> None:
    held, end = make_status(held=True), make_status(outcome=Outcome.PROMOTED, phase=ReleasePhase.DONE)
    releases.statuses = [held, held, make_status(), held, end]
    result = run("release", "watch", *IN_TEST)
    assert result.code == 0
    told = "held; next: wait for evidence, weightshift release promote ranker -e test, or rollback"
    assert result.out.count(told) == 2
    assert result.out.endswith("test/ranker v2 promoted\n")


def test_a_release_that_no_worker_takes_says_so(
    run: Run, releases: Any, make_status: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_for_it(service: Service, *, on_status: Callable[[Any], None], run_id: str) -> Any:
        await warned.wait()
        on_status(done)
        return done

    def warn(self: Output, text: str) -> None:
        said.append(text)
        warned.set()

    done, warned, said = make_status(outcome=Outcome.PROMOTED), asyncio.Event(), list[str]()
    monkeypatch.setattr(Output, "warning", warn)
    monkeypatch.setattr(follow_module, "_SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(releases, "wait", wait_for_it)
    assert run("release", "watch", *IN_TEST).code == 0
    assert "no worker has answered" in said[0]

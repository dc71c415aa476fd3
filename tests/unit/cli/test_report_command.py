import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.cli.conftest import FakeConnections, FakeRegistry
from tests.unit.report.conftest import make_chain, make_record
from weightshift.errors import MetricsUnreachable, Unauthorised
from weightshift.report.collect import HistoryReader

Run = Callable[..., Any]


class Away:
    async def read(self, *_: object) -> None:
        raise MetricsUnreachable("Prometheus did not answer")


@pytest.fixture(autouse=True)
def _registry(connections: FakeConnections, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.answers["audit_page"] = lambda query: tuple(make_chain().rows)
    registry.answers["releases"] = (make_record(),)
    monkeypatch.setattr(connections, "history", lambda arguments: cast(HistoryReader, Away()))


def test_the_report_is_text_for_people(run: Run) -> None:
    result = run("release", "report", "R1", "-e", "test")
    assert result.code == 0
    for expected in (
        "rolled-back: gate error_rate",
        "in place of v1",
        "better ranking",
        "5 %",
        "way back  none",
        "approved  artifact v2 by bob at 2026-01-02T02:58:30+00:00",
    ):
        assert expected in result.out
    assert "Prometheus did not answer" in result.out


def test_the_report_is_json_for_programs(run: Run, registry: FakeRegistry) -> None:
    result = run("release", "report", "R1", "-e", "test", "--model", "ranker", "--json")
    document = json.loads(result.out)
    assert (document["release_id"], document["stages"][0]["outcome"]) == ("R1", "breach")
    (query,) = [call[1] for call in registry.calls if call[0] == "audit_page"]
    assert (query.release_id, query.environment, query.model) == ("R1", "test", "ranker")


def test_the_page_is_written_where_it_was_asked_for(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = run("release", "report", "R1", "-e", "test", "--html", str(page))
    assert (result.code, f"the page is in {page}" in result.out) == (0, True)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    result = run("release", "report", "R1", "-e", "test", "--html", str(tmp_path))
    assert result.code == 2
    assert "html:" in result.err


def test_a_release_nobody_knows_is_bad_input(run: Run, registry: FakeRegistry) -> None:
    registry.answers["audit_page"] = ()
    result = run("release", "report", "R9", "-e", "test")
    assert result.code == 2
    assert "no release R9" in result.err


def test_a_token_of_one_model_is_told_so(run: Run, registry: FakeRegistry) -> None:
    registry.answers["audit_page"] = Unauthorised("This shows every model but the token covers ranker only")
    result = run("release", "report", "R1", "-e", "test")
    assert result.code == 2
    assert "Or add --model." in result.err

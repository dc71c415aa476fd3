"""Where the report comes from, and what happens when a part is away."""

from collections.abc import Callable
from datetime import datetime

import pytest

from tests.unit.report.conftest import SERVICE, START, Rows, after
from weightshift.contracts.evidence import AuditQuery, AuditRow
from weightshift.contracts.identity import Service
from weightshift.contracts.release import ReleaseRecord
from weightshift.errors import MetricsUnreachable, UnknownRelease
from weightshift.registry.chain import selects
from weightshift.report.collect import collect
from weightshift.report.document import Measured, ReleaseReport


class Records:
    def __init__(self, record: ReleaseRecord, rows: Rows) -> None:
        self._record, self._rows = record, rows
        self.queries: list[AuditQuery] = []

    async def releases(self, service: Service) -> tuple[ReleaseRecord, ...]:
        return (self._record,) if service == self._record.service else ()

    async def audit_page(self, query: AuditQuery) -> tuple[AuditRow, ...]:
        self.queries.append(query)
        return tuple(row for row in self._rows if selects(query, row))[: query.limit]


class History:
    def __init__(self, answer: Measured | Exception) -> None:
        self._answer = answer
        self.asked: list[tuple[Service, datetime, datetime]] = []

    async def read(self, service: Service, start: datetime, end: datetime) -> Measured:
        self.asked.append((service, start, end))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.fixture
def records(record: ReleaseRecord, rows: Callable[[], Rows]) -> Records:
    return Records(record, rows())


async def collected(records: Records, history: History, release_id: str = "R1") -> ReleaseReport:
    return await collect(
        release_id,
        environment="test",
        model=None,
        records=records,
        history=history,
        clock=lambda: after(1_000),
    )


async def test_prometheus_is_asked_for_the_time_of_the_release(records: Records) -> None:
    measured = Measured(at=(START.timestamp(),))
    history = History(measured)
    report = await collected(records, history)
    assert history.asked == [(SERVICE, START, after(100))]
    assert (report.measured, report.notes) == (measured, ())
    assert len(report.steps) == 6


async def test_without_prometheus_the_report_shows_what_was_judged_and_says_so(records: Records) -> None:
    report = await collected(records, History(MetricsUnreachable("Prometheus did not answer")))
    assert report.measured is None
    (note,) = report.notes
    assert note.startswith("Prometheus did not answer: the curves show only")
    assert report.stages[0].curve.until


async def test_prometheus_that_forgot_is_said_too(records: Records) -> None:
    report = await collected(records, History(Measured()))
    (note,) = report.notes
    assert note.startswith("Prometheus holds no request of this time")


async def test_an_unknown_release_is_refused_with_the_next_step(records: Records) -> None:
    with pytest.raises(UnknownRelease, match="no release R9 in test; see `weightshift release list"):
        await collected(records, History(Measured()), "R9")

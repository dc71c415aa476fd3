"""Reading what a report is made of: the registry, and Prometheus where it answers."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from weightshift.contracts.evidence import AuditQuery, AuditRow
from weightshift.contracts.identity import Service
from weightshift.contracts.release import ReleaseRecord
from weightshift.errors import MetricsUnreachable, QueryRefused, UnknownRelease
from weightshift.registry.pages import read_all
from weightshift.report.assemble import assemble
from weightshift.report.document import Measured, ReleaseReport

_JUDGED_ONLY = "the curves show only what the judge counted in each stage."


class RecordsReader(Protocol):
    """Reads releases and audit rows: the registry's client, or a registry itself."""

    async def releases(self, service: Service) -> tuple[ReleaseRecord, ...]:
        """Read a service's releases, newest first."""

    async def audit_page(self, query: AuditQuery) -> tuple[AuditRow, ...]:
        """Read the first rows that a query selects, oldest first."""


class HistoryReader(Protocol):
    """Reads both cohorts' measured curves."""

    async def read(self, service: Service, start: datetime, end: datetime) -> Measured:
        """Return the curves between two times. Raises `MetricsUnreachable`, `QueryRefused`."""


async def collect(
    release_id: str,
    *,
    environment: str,
    model: str | None,
    records: RecordsReader,
    history: HistoryReader,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> ReleaseReport:
    """Build the report of one release. Without `model` the environment's whole chain is searched.

    Prometheus may be away: the report says so and shows what the judge counted. Raises `UnknownRelease`,
    and `Unauthorised` where the token does not cover every model and none is named.
    """
    query = AuditQuery(environment=environment, model=model, release_id=release_id, limit=1_000)
    rows = await read_all(records.audit_page, query)
    record = await _record(release_id, rows, records)
    if record is None:
        raise UnknownRelease(
            f"release: the registry knows no release {release_id} in {environment}; see `weightshift "
            f"release list MODEL -e {environment}`"
        )
    now = clock()
    measured, notes = await _measured(record, now, history)
    return assemble(record, rows, now=now, measured=measured, notes=notes)


async def _record(
    release_id: str, rows: tuple[AuditRow, ...], records: RecordsReader
) -> ReleaseRecord | None:
    if not rows:
        return None
    found = await records.releases(rows[0].service)
    return next((record for record in found if record.release_id == release_id), None)


async def _measured(
    record: ReleaseRecord, now: datetime, history: HistoryReader
) -> tuple[Measured | None, list[str]]:
    try:
        measured = await history.read(record.service, record.started_at, record.finished_at or now)
    except (MetricsUnreachable, QueryRefused) as error:
        return None, [f"{error}: {_JUDGED_ONLY}"]
    if not measured.at:
        return None, [f"Prometheus holds no request of this time: {_JUDGED_ONLY}"]
    return measured, []

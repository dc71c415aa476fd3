"""From a release's record and audit rows to its report. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from weightshift.contracts.approval import Approval
from weightshift.contracts.commands import InstanceProgress
from weightshift.contracts.curve import StageCurve
from weightshift.contracts.evidence import AuditRow
from weightshift.contracts.plan import Gate, Metric, Plan, ResolvedStage
from weightshift.contracts.release import Outcome, ReleaseRecord
from weightshift.contracts.target import Publication, Target
from weightshift.contracts.verdict import StageVerdict
from weightshift.registry.chain import broken_rows
from weightshift.report.document import (
    GateLimit,
    Measured,
    ReleaseReport,
    ReportedApproval,
    ReportedInstance,
    ReportedStep,
    ReportedTarget,
    SplitChange,
    StageReport,
)

_SHOWN_QUANTILE = 0.99
_TAKEN_BACK = (Outcome.ROLLED_BACK, Outcome.REFUSED)
"""After these what served before serves, so that there is nothing to go back from."""

Model = TypeVar("Model", bound=BaseModel)


def assemble(
    record: ReleaseRecord,
    rows: Sequence[AuditRow],
    *,
    now: datetime,
    measured: Measured | None = None,
    notes: Sequence[str] = (),
) -> ReleaseReport:
    """Build the report from everything the audit chain holds of a release, oldest row first.

    Rows of other builds may lack what this one records, or hold more: what cannot be read is left out,
    and `notes` says so.
    """
    reader = _Rows(rows)
    targets = tuple(reader.targets())
    ended = record.finished_at or now
    return ReleaseReport(
        release_id=record.release_id,
        service=record.service,
        artifact_id=record.artifact_id,
        replaces=reader.replaced(),
        operator=record.operator,
        why=reader.why(),
        outcome=record.outcome,
        reason=record.reason,
        started_at=record.started_at,
        finished_at=record.finished_at,
        duration_seconds=(ended - record.started_at).total_seconds(),
        way_back="none" if record.outcome in _TAKEN_BACK else reader.way_back(),
        request_key=record.request_key,
        splits=tuple(reader.splits()),
        stages=reader.stages(),
        measured=measured,
        steps=tuple(reader.steps()),
        instances=tuple(reader.instances()),
        targets=targets,
        approvals=reader.approvals(),
        notes=(*notes, *reader.notes()),
    )


class _Rows:
    """Reads the rows topic by topic, and remembers which of them could not be read."""

    def __init__(self, rows: Sequence[AuditRow]) -> None:
        self._rows = rows
        self._unreadable: set[int] = set()
        self._plan = self._read_plan()

    def steps(self) -> Iterator[ReportedStep]:
        for row in self._rows:
            yield ReportedStep(
                at=_moment(row),
                number=row.sequence,
                step=row.step,
                operator=row.operator,
                text=row.summary,
                hash=row.hash,
            )

    def splits(self) -> Iterator[SplitChange]:
        for row in self._rows:
            for entry in self._entries(row, "splits"):
                if (change := self._parse(row, SplitChange, entry)) is not None:
                    yield change

    def stages(self) -> tuple[StageReport, ...]:
        """Return each stage by its latest judgement, which covers the stage from its start."""
        judged: dict[datetime, StageReport] = {}
        for row in self._rows:
            if "verdict" in row.data and "stage" in row.data and (stage := self._stage(row)) is not None:
                judged[stage.started_at] = stage
        return tuple(judged.values())

    def _stage(self, row: AuditRow) -> StageReport | None:
        verdict = self._parse(row, StageVerdict, row.data["verdict"])
        curve = self._parse(row, StageCurve, row.data.get("curve", {}))
        about = row.data["stage"]
        if verdict is None or not isinstance(about, dict):
            return None
        document = {
            "weight": about.get("weight"),
            "started_at": about.get("started_at"),
            "ended_at": _moment(row),
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "canary_requests": verdict.canary_requests,
            "stable_requests": verdict.stable_requests,
            "gates": verdict.gates,
            "curve": curve or StageCurve(),
        }
        stage = self._parse(row, StageReport, document)
        planned = None if stage is None else self._planned(stage.weight)
        if stage is None or planned is None:
            return stage
        errors = [gate for gate in planned.gates if gate.metric is Metric.ERROR_RATE]
        latencies = [gate for gate in planned.gates if _is_shown_latency(gate)]
        return stage.model_copy(
            update={"error_limits": _limits(errors), "latency_limits": _limits(latencies)}
        )

    def _planned(self, weight: int) -> ResolvedStage | None:
        stages = self._plan.resolved_stages() if self._plan else ()
        return next((stage for stage in stages if stage.weight == weight), None)

    def instances(self) -> Iterator[ReportedInstance]:
        for row in self._rows:
            for entry in self._entries(row, "instances"):
                if (progress := self._parse(row, InstanceProgress, entry)) is not None:
                    yield ReportedInstance(
                        phase=row.step,
                        instance_id=progress.instance.instance_id,
                        boot_id=progress.instance.boot_id,
                        bytes_done=progress.bytes_done,
                        seconds=progress.phase_seconds,
                        peak_memory_bytes=progress.peak_memory_bytes,
                    )

    def targets(self) -> Iterator[ReportedTarget]:
        for row in self._publications():
            target = self._parse(row, Target, row.data.get("target"))
            if target is not None:
                previous = row.data.get("previous")
                yield ReportedTarget(
                    at=target.updated_at or row.recorded_at,
                    cohort=target.cohort,
                    revision=target.revision,
                    artifact_id=target.artifact_id,
                    previous=_named(previous) if isinstance(previous, dict) else "nothing",
                )

    def replaced(self) -> str | None:
        """Return the artifact that served before: what the first publication found on its cohort."""
        for row in self._publications():
            previous = row.data.get("previous")
            return str(previous.get("artifact_id")) if isinstance(previous, dict) else None
        return None

    def approvals(self) -> tuple[ReportedApproval, ...]:
        found: dict[str, ReportedApproval] = {}
        for row in self._publications():
            publication = self._parse(row, Publication, row.data.get("publication"))
            given_at = row.data.get("artifact_approved_at")
            for person in self._entries(row, "artifact_approvers"):
                about = f"artifact {publication.artifact_id}" if publication else "the artifact"
                entry = {"of": about, "operator": person}
                if isinstance(given_at, dict):
                    entry["at"] = given_at.get(person)
                if (approval := self._parse(row, ReportedApproval, entry)) is not None:
                    found[f"{about} {person}"] = approval
            for entry in self._entries(row, "approvals"):
                self._add(found, row, entry)
        for row in self._rows:
            if row.step == "approve":
                self._add(found, row, row.data.get("approval"))
        return tuple(found.values())

    def _add(self, found: dict[str, ReportedApproval], row: AuditRow, entry: object) -> None:
        approval = self._parse(row, Approval, entry)
        if approval is not None:
            found[approval.approval_id] = ReportedApproval(
                of=f"release {approval.release_id}",
                operator=approval.operator,
                at=approval.created_at,
                reason=approval.reason,
                approval_id=approval.approval_id,
            )

    def why(self) -> str:
        """Return the reason that was given when the release was asked for."""
        request = self._request()
        return str(request.get("reason") or "")

    def way_back(self) -> str:
        """Return what a rollback would have cost, as it was last known."""
        known = [str(row.data["way_back"]) for row in self._rows if "way_back" in row.data]
        return known[-1] if known else "not recorded"

    def notes(self) -> tuple[str, ...]:
        """Say what is missing or wrong about the rows themselves."""
        found = []
        if not self._rows:
            found.append("The audit chain holds nothing of this release.")
        if broken := broken_rows(self._rows):
            numbers = ", ".join(map(str, broken))
            found.append(
                f"Audit rows {numbers} are not as they were written; run `weightshift audit verify`."
            )
        if self._unreadable:
            numbers = ", ".join(map(str, sorted(self._unreadable)))
            found.append(f"Audit rows {numbers} hold something this build cannot read; it is left out.")
        return tuple(found)

    def _publications(self) -> list[AuditRow]:
        return [row for row in self._rows if row.step == "publish"]

    def _request(self) -> dict[str, Any]:
        request = next((row.data.get("request") for row in self._rows if row.step == "admit"), None)
        return request if isinstance(request, dict) else {}

    def _read_plan(self) -> Plan | None:
        row = next((row for row in self._rows if row.step == "admit"), None)
        return self._parse(row, Plan, self._request().get("plan", {})) if row else None

    def _entries(self, row: AuditRow, name: str) -> list[Any]:
        entries = row.data.get(name) or []
        if not isinstance(entries, list):
            self._unreadable.add(row.sequence)
            return []
        return entries

    def _parse(self, row: AuditRow, kind: type[Model], entry: object) -> Model | None:
        try:
            return kind.model_validate(entry)
        except ValidationError:
            self._unreadable.add(row.sequence)
            return None


def _moment(row: AuditRow) -> datetime:
    """Return when a row's step happened: rows travel with a later command and are recorded with it."""
    try:
        moment = datetime.fromisoformat(str(row.data["at"]))
    except (KeyError, ValueError):
        return row.recorded_at
    return moment if moment.tzinfo else row.recorded_at


def _named(previous: dict[str, Any]) -> str:
    return f"revision {previous.get('revision')} ({previous.get('artifact_id')})"


def _is_shown_latency(gate: Gate) -> bool:
    return gate.metric is Metric.LATENCY and gate.quantile == _SHOWN_QUANTILE


def _limits(gates: Sequence[Gate]) -> tuple[GateLimit, ...]:
    return tuple(
        GateLimit(gate=gate.name, maximum=gate.maximum, ratio=gate.ratio, margin=gate.margin)
        for gate in gates
    )

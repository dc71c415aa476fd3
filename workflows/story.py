"""What a release tells of itself: status, evidence, the Temporal UI, searches."""

from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

with workflow.unsafe.imports_passed_through():
    from weightshift.contracts.commands import FleetProgress
    from weightshift.contracts.evidence import Evidence
    from weightshift.contracts.identity import Cohort
    from weightshift.contracts.release import Outcome, ReleasePhase, ReleaseRequest, ReleaseStatus, Step
    from weightshift.contracts.traffic import MeshState, TrafficSplit
    from weightshift.contracts.verdict import StageVerdict
    from workflows.approvals import ApprovalGates
    from workflows.rollback import Position, way_back

STAGE_ATTRIBUTE = SearchAttributeKey.for_keyword("ReleaseStage")
VERDICT_ATTRIBUTE = SearchAttributeKey.for_keyword("ReleaseVerdict")

_PREPARING = "preparing"
_SEARCHABLE = {
    **dict.fromkeys(ReleasePhase, _PREPARING),
    ReleasePhase.AWAITING_APPROVAL: "awaiting-approval",
    ReleasePhase.PROMOTING: "promoting",
    ReleasePhase.RETURNING: "promoting",
    ReleasePhase.PARACHUTE: "parachute",
    ReleasePhase.RETIRING: "parachute",
    ReleasePhase.ROLLING_BACK: "rolling-back",
    ReleasePhase.DONE: "done",
}
"""What a release is found by: coarser than its phase, since every change costs an event."""


class ReleaseStory:
    """Where a release is, and how it came there; every step is a row of evidence to be recorded."""

    def __init__(self, request: ReleaseRequest) -> None:
        self.request = request
        self.phase = ReleasePhase.ADMITTING
        self.position = Position.UNTOUCHED
        self.traffic: MeshState | None = None
        self.stage_weight: int | None = None
        self.verdict: StageVerdict | None = None
        self.reload_seconds: float | None = None
        self.way_back_until: datetime | None = None
        self.outcome: Outcome | None = None
        self.reason = ""
        self.held = False
        self.paused = False
        self._paused_at: datetime | None = None
        self._paused_before = timedelta()
        self.gates: ApprovalGates | None = None
        self.steps: list[Step] = []
        self.evidence: tuple[Evidence, ...] = ()
        self._split: TrafficSplit | None = None
        self._splits_to_tell: list[dict[str, Any]] = []
        self._searchable = _PREPARING

    @property
    def split(self) -> TrafficSplit | None:
        """What the mesh was last read back to do; every change goes with its time into the evidence."""
        return self._split

    @split.setter
    def split(self, split: TrafficSplit) -> None:
        self._split = split
        self._splits_to_tell.append(
            {"at": workflow.now().isoformat(), "split": split.model_dump(mode="json")}
        )

    @property
    def paused_for(self) -> timedelta:
        """How long people have kept the release where it is, all pauses together."""
        since = workflow.now() - self._paused_at if self._paused_at else timedelta()
        return self._paused_before + since

    def pause(self) -> None:
        """Keep the intent to stay; a repeat changes nothing."""
        self.paused = True
        self._paused_at = self._paused_at or workflow.now()

    def resume(self) -> None:
        """Withdraw the intent to stay; a repeat changes nothing."""
        self._paused_before, self._paused_at = self.paused_for, None
        self.paused = False

    def advance(self, position: Position) -> None:
        """Note how far the release has moved what serves; to return from the canary is one step."""
        if self.position is not Position.RETURNING_FROM_CANARY:
            self.position = position

    def enter(self, phase: ReleasePhase, text: str) -> None:
        """Move to a phase, for the status, the Temporal UI and searches."""
        self.phase = phase
        self.tell(text)
        observing = phase is ReleasePhase.OBSERVING
        stage = f"{phase} {self.stage_weight} %" if observing else _SEARCHABLE[phase]
        if stage != self._searchable:
            self._searchable = stage
            workflow.upsert_search_attributes([STAGE_ATTRIBUTE.value_set(stage)])

    def tell(self, text: str, *, operator: str = "", **data: Any) -> None:
        """Add a line to the release's story and a row to its evidence; `operator` is who did it, if known."""
        now = workflow.now()
        self.steps.append(Step(at=now, text=text))
        number = len(self.steps)
        data |= {"at": now.isoformat(), "way_back": way_back(self.position, self.reload_seconds)}
        if self._splits_to_tell:
            data["splits"], self._splits_to_tell = self._splits_to_tell, []
        row = Evidence(
            service=self.request.service,
            release_id=self.request.release_id,
            operation_id=f"{self.request.release_id}:step:{number}",
            step=str(self.phase),
            operator=operator or self.request.operator,
            summary=text,
            data=data,
        )
        self.evidence = (*self.evidence, row)
        workflow.set_current_details(self._markdown())

    def tell_progress(self, progress: FleetProgress, cohort: Cohort) -> None:
        """Keep what each instance of a cohort took as evidence."""
        seconds = [one.busy_seconds for one in progress.instances]
        self.tell(
            f"{self.phase}: {len(progress.instances)} {cohort} instances, "
            f"slowest {max(seconds, default=0):.1f} s",
            cohort=cohort.value,
            instances=[one.model_dump(mode="json") for one in progress.instances],
        )

    def read_back(self, state: MeshState) -> None:
        """Keep what the mesh says it does: for the status, and to notice when somebody else changes it."""
        self.split, self.traffic = state.split, state

    def settle(self, outcome: Outcome, reason: str) -> None:
        """Record how the release ends, for callers who wait and for searches."""
        self.outcome, self.reason = outcome, reason
        workflow.upsert_search_attributes([VERDICT_ATTRIBUTE.value_set(str(outcome))])

    def status(self) -> ReleaseStatus:
        """Return everything a person or a script asks of a release."""
        return ReleaseStatus(
            release_id=self.request.release_id,
            service=self.request.service,
            artifact_id=self.request.artifact_id,
            phase=self.phase,
            stage_weight=self.stage_weight,
            split=self.split,
            verdict=self.verdict,
            outcome=self.outcome,
            reason=self.reason,
            way_back=way_back(self.position, self.reload_seconds),
            way_back_until=self.way_back_until if self.phase is ReleasePhase.PARACHUTE else None,
            held=self.held,
            paused=self.paused,
            waiting_for=self._waiting_for(),
            approval_refusal=self.approval_refusal(),
            steps=tuple(self.steps),
        )

    def approval_refusal(self) -> str:
        """Return why no approval could be counted now; empty when one could."""
        if self.gates is None:
            return "the release is not admitted yet; approve it in a moment"
        is_over = self.phase in (ReleasePhase.ROLLING_BACK, ReleasePhase.DONE)
        return "no approval is waited for" if self.gates.next_closed is None or is_over else ""

    def _waiting_for(self) -> str:
        where = f"{self.request.service.model} -e {self.request.service.environment}"
        weight = self.gates.next_closed if self.gates else None
        if self.phase is ReleasePhase.AWAITING_APPROVAL and self.gates and weight is not None:
            return f"{self.gates.waiting_for(weight)} before {weight} %: weightshift release approve {where}"
        if self.phase is ReleasePhase.OBSERVING and self.held and self.verdict is not None:
            return f"evidence ({self.verdict.reason}); without it: weightshift release promote {where}"
        return ""

    def _markdown(self) -> str:
        split = f"stable/canary **{self.split}**" if self.split else "unchanged"
        lines = [
            f"**{self.request.artifact_id}** to {self.request.service}: **{self.phase}**, traffic {split}, "
            f"way back: {way_back(self.position, self.reload_seconds)}",
            "",
            *(f"- {step.at:%H:%M:%S} {step.text}" for step in self.steps),
        ]
        return "\n".join(lines)

    def recorded(self, rows: tuple[Evidence, ...]) -> None:
        """Forget evidence that the registry has. Rows whose fate is unknown stay, to be sent once more."""
        known = {row.operation_id for row in rows}
        self.evidence = tuple(row for row in self.evidence if row.operation_id not in known)

"""One release's audit rows, as the registry would return them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from weightshift.contracts.curve import ArmCurve, StageCurve
from weightshift.contracts.evidence import AuditRow
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome, ReleaseRecord, ReleaseRequest
from weightshift.contracts.target import Publication, Target
from weightshift.contracts.verdict import GateResult, GateVerdict, StageOutcome, StageVerdict
from weightshift.registry.chain import FIRST_PREVIOUS_HASH, Entry, chained

SERVICE = Service(model="ranker", environment="test")
START = datetime(2026, 1, 2, 3, 0, 0, tzinfo=UTC)
PLAN = Plan.model_validate(
    {
        "stages": [5, 100],
        "gates": [
            {"metric": "error_rate", "maximum": 0.03},
            {"metric": "error_rate", "ratio": 1.1},
            {"metric": "latency", "ratio": 1.5},
            {"metric": "latency", "ratio": 2.0, "quantile": 0.9},
        ],
    }
)

Rows = tuple[AuditRow, ...]


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class Chain:
    """Appends rows a minute late, as they are recorded with a later command."""

    def __init__(self) -> None:
        self.rows: list[AuditRow] = []

    def add(self, step: str, summary: str, *, seconds: float, operator: str = "ada", **data: Any) -> None:
        number = len(self.rows) + 1
        entry = Entry(
            service=SERVICE,
            operation_id=f"R1:{number}",
            release_id="R1",
            step=step,
            operator=operator,
            summary=summary,
            data=data,
        )
        previous = self.rows[-1].hash if self.rows else FIRST_PREVIOUS_HASH
        self.rows.append(
            chained(entry, sequence=number, previous_hash=previous, recorded_at=after(seconds + 60))
        )

    def tell(
        self, step: str, summary: str, *, seconds: float, way_back: str = "instant", **data: Any
    ) -> None:
        self.add(step, summary, seconds=seconds, at=after(seconds).isoformat(), way_back=way_back, **data)


def curve(start: float, points: int) -> StageCurve:
    arm = ArmCurve(requests=(100,) * points, errors=tuple(range(points)), p99=(None, *(0.02,) * (points - 1)))
    return StageCurve(
        until=tuple(after(start + 10 * number).timestamp() for number in range(points)),
        canary=arm,
        stable=arm,
        log_harm={"error_rate <= 0.03": (1.0,) * points, "hard": (-0.5,) * points},
        log_health={"error_rate <= 0.03": (2.0,) * points},
    )


def verdict(outcome: StageOutcome, reason: str) -> dict[str, Any]:
    figures = {"log_harm": 6.6, "log_harm_boundary": 6.5, "log_health": -1.0, "log_health_boundary": 2.9957}
    gates = (
        GateResult(gate="error_rate <= 0.03", verdict=GateVerdict.BREACH, figures=figures),
        GateResult(gate="hard", verdict=GateVerdict.NOT_APPLICABLE, figures=figures),
    )
    result = StageVerdict(
        outcome=outcome, reason=reason, gates=gates, canary_requests=300, stable_requests=5_700
    )
    return result.model_dump(mode="json")


def publication(cohort: Cohort, revision: int, artifact_id: str, previous: Target | None) -> dict[str, Any]:
    command = Publication(
        service=SERVICE,
        cohort=cohort,
        artifact_id=artifact_id,
        fence=Fence(epoch=1, sequence=1),
        operation_id="R1:1",
        release_id="R1",
        operator="ada",
    )
    published = target(cohort, revision, artifact_id)
    return {
        "publication": command.model_dump(mode="json"),
        "target": published.model_dump(mode="json"),
        "previous": previous.model_dump(mode="json") if previous else None,
        "artifact_approvers": ["bob"],
        "artifact_approved_at": {"bob": after(-90).isoformat()},
        "approvals": [],
    }


def target(cohort: Cohort, revision: int, artifact_id: str) -> Target:
    return Target(
        service=SERVICE,
        cohort=cohort,
        revision=revision,
        artifact_id=artifact_id,
        manifest_sha256="ab" * 32,
        feature_schema="ranker-v1",
        updated_at=after(2),
    )


def split(seconds: float, canary: int) -> dict[str, Any]:
    return {"at": after(seconds).isoformat(), "split": {"stable": 100 - canary, "canary": canary}}


def stage(weight: int, seconds: float) -> dict[str, Any]:
    return {"weight": weight, "started_at": after(seconds).isoformat()}


def make_record() -> ReleaseRecord:
    return ReleaseRecord(
        release_id="R1",
        service=SERVICE,
        artifact_id="v2",
        operator="ada",
        epoch=1,
        outcome=Outcome.ROLLED_BACK,
        reason="gate error_rate <= 0.03 breached",
        started_at=START,
        finished_at=after(100),
    )


def make_chain() -> Chain:
    """A release that was held at 5 %, judged again, and then turned back."""
    request = ReleaseRequest(
        release_id="R1", service=SERVICE, artifact_id="v2", plan=PLAN, operator="ada", reason="better ranking"
    )
    chain = Chain()
    chain.add("admit", "better ranking", seconds=0, request=request.model_dump(mode="json"), epoch=1)
    previous = target(Cohort.CANARY, 7, "v1")
    chain.add("publish", "canary to v2", seconds=2, **publication(Cohort.CANARY, 8, "v2", previous))
    progress = {
        "instance": {"instance_id": "canary-0", "boot_id": "b1"},
        "bytes_done": 5_000_000,
        "phase_seconds": {"downloading": 1.25},
        "peak_memory_bytes": 1 << 20,
    }
    chain.tell("downloading", "downloaded", seconds=5, instances=[progress])
    held = verdict(StageOutcome.INCONCLUSIVE, "insufficient")
    chain.tell(
        "observing",
        "5 %: inconclusive",
        seconds=50,
        splits=[split(10, 5)],
        verdict=held,
        stage=stage(5, 10),
        curve=curve(20, 3).model_dump(mode="json"),
    )
    breach = verdict(StageOutcome.BREACH, "gate error_rate <= 0.03 breached")
    chain.tell(
        "observing",
        "5 %: breach",
        seconds=90,
        verdict=breach,
        stage=stage(5, 10),
        curve=curve(20, 6).model_dump(mode="json"),
    )
    chain.tell("rolling-back", "rolling back", seconds=90, way_back="instant", splits=[split(90.1, 0)])
    return chain


@pytest.fixture
def record() -> ReleaseRecord:
    return make_record()


@pytest.fixture
def chain() -> Chain:
    return make_chain()


@pytest.fixture
def rows(chain: Chain) -> Callable[[], Rows]:
    return lambda: tuple(chain.rows)

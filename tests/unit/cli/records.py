"""What the registry remembers of releases, for commands that read it."""

from datetime import UTC, datetime

from weightshift.contracts.identity import Service
from weightshift.contracts.release import Outcome, ReleaseRecord

SERVICE = Service(model="ranker", environment="test")


def record(artifact_id: str, outcome: Outcome | None = Outcome.PROMOTED) -> ReleaseRecord:
    return ReleaseRecord(
        release_id=f"R-{artifact_id}",
        service=SERVICE,
        artifact_id=artifact_id,
        operator="ci",
        epoch=1,
        outcome=outcome,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )

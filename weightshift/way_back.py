"""Going back after a release has ended: which artifact, and how. Pure."""

from collections.abc import Sequence
from datetime import timedelta

from weightshift.contracts.plan import Plan, Stage
from weightshift.contracts.release import Outcome, ReleaseRecord
from weightshift.errors import Conflict, UnknownArtifact

EXPEDITED_PLAN = Plan(
    stages=(Stage(weight=100),), window=timedelta(), max_window=timedelta(), retain=timedelta()
)
"""All traffic as soon as the canary is warm: no windows and no judgement, but every check on the artifact."""


def previous_artifact(records: Sequence[ReleaseRecord], current: str) -> str:
    """Return the artifact that was promoted before `current`; records come newest first.

    Raises `UnknownArtifact` when there is none.
    """
    promoted = [record.artifact_id for record in records if record.outcome is Outcome.PROMOTED]
    if current in promoted:
        promoted = promoted[promoted.index(current) :]
    earlier = next((artifact_id for artifact_id in promoted if artifact_id != current), None)
    if earlier is None:
        raise UnknownArtifact(
            f"nothing was promoted before {current}; name the artifact to go back to with --to"
        )
    return earlier


def require_serving(wanted: str | None, *serving: str | None) -> None:
    """Raise `Conflict` unless `wanted` is what serves or is being released; None means anything."""
    if wanted is not None and wanted not in serving:
        known = ", ".join(sorted({artifact for artifact in serving if artifact})) or "nothing"
        raise Conflict(f"{wanted} does not serve, {known} does; nothing was changed")

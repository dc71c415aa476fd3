"""Whether an instance could take traffic, by what it reports. Pure."""

from weightshift.contracts.instance import InstanceState


def serves(state: InstanceState | None, revision: int) -> bool:
    """Whether an instance reports that it serves a revision and stays, ready or not."""
    if state is None or state.lost or state.report.draining or state.report.actual is None:
        return False
    return state.report.actual.revision == revision


def unready(instance_id: str, state: InstanceState | None, revision: int) -> str | None:
    """Return why an instance could not serve a revision now, or None; without a `state` nobody knows it."""
    if state is None or state.lost:
        return f"{instance_id} is lost"
    actual = state.report.actual
    if actual is None or actual.revision != revision:
        return f"{instance_id} serves revision {actual.revision if actual else 'none'}"
    return None if state.report.ready else f"{instance_id} is not ready"

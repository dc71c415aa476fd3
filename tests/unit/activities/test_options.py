"""On which task queue an activity waits for its turn."""

from activities import options
from activities.options import Call

ROLLBACK = ("CUT", "SHIFT", "READ_MESH", "SEAL", "RESTORE", "CHECK_CAPACITY", "REVOKE_WAVES", "COMPLETE")


def calls() -> dict[str, Call]:  # type: ignore[type-arg]
    return {name: value for name, value in vars(options).items() if isinstance(value, Call)}


def test_nothing_that_a_rollback_needs_is_behind_what_waits_on_others() -> None:
    assert not [name for name in ROLLBACK if calls()[name].waits]


def test_what_may_take_hours_has_the_queue_of_waits() -> None:
    long = {name for name, call in calls().items() if call.heartbeat is not None} - set(ROLLBACK)
    assert {"OBSERVE", "SWAP", "DOWNLOAD"} < long
    assert all(calls()[name].waits for name in long)

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.target_state import TargetState
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.target import Target
from weightshift.errors import RevisionConflict

MakeTarget = Callable[..., Target]


@pytest.fixture
def create(tmp_path: Path) -> Callable[[], TargetState]:
    return lambda: TargetState(
        directory=tmp_path,
        service=Service(model="ranker", environment="test"),
        cohort=Cohort.STABLE,
        check=lambda _: None,
    )


def test_the_highest_accepted_revision_survives_a_restart(
    create: Callable[[], TargetState], make_target: MakeTarget
) -> None:
    state = create()
    assert state.accept(make_target(3, serve_floor=2))
    assert not state.accept(make_target(3))
    again = create()
    assert again.accepted == make_target(3, serve_floor=2)
    with pytest.raises(RevisionConflict, match="older"):
        again.accept(make_target(2))


@pytest.mark.parametrize(
    "fields",
    [
        {"manifest_sha256": "f" * 64},
        {"cohort": Cohort.CANARY},
        {"service": Service(model="other", environment="test")},
        {"service": Service(model="ranker", environment="other")},
    ],
)
def test_a_target_that_contradicts_is_refused(
    create: Callable[[], TargetState], make_target: MakeTarget, fields: dict[str, Any]
) -> None:
    state = create()
    state.accept(make_target(3))
    with pytest.raises(RevisionConflict):
        state.accept(make_target(3, **fields))
    assert state.accepted == make_target(3)


def test_what_served_is_kept_beside_what_was_accepted(
    create: Callable[[], TargetState], make_target: MakeTarget
) -> None:
    state = create()
    state.accept(make_target(1))
    state.trust(make_target(1))
    state.accept(make_target(2))
    again = create()
    assert (again.accepted, again.trusted) == (make_target(2), make_target(1))


def test_two_instances_that_share_a_cache_never_take_each_other_back(
    create: Callable[[], TargetState], make_target: MakeTarget
) -> None:
    ahead, behind = create(), create()
    behind.accept(make_target(1))
    ahead.accept(make_target(2))
    ahead.trust(make_target(2))
    behind.trust(make_target(1))
    again = create()
    assert (again.accepted, again.trusted) == (make_target(2), make_target(2))
    assert (behind.accepted, behind.trusted) == (make_target(1), make_target(1))


def test_a_full_disk_is_left_without_half_written_files(
    create: Callable[[], TargetState],
    make_target: MakeTarget,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    state = create()
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        assert state.accept(make_target(1))
        assert list(tmp_path.iterdir()) == []
    state.trust(make_target(1))
    assert create().accepted == make_target(1)


@pytest.mark.parametrize("content", [b"", b"{", b'{"accepted": {"revision": -1}}', b"\xff"])
def test_a_damaged_file_does_not_stop_a_start(
    create: Callable[[], TargetState], make_target: MakeTarget, tmp_path: Path, content: bytes
) -> None:
    create().accept(make_target(1))
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    state = create()
    assert state.accepted is None
    assert state.accept(make_target(1))


def test_a_disk_that_refuses_does_not_block_a_rollback(
    create: Callable[[], TargetState], make_target: MakeTarget, tmp_path: Path
) -> None:
    state = create()
    tmp_path.rename(tmp_path.with_name("gone"))
    assert state.accept(make_target(4))
    with pytest.raises(RevisionConflict):
        state.accept(make_target(3))

"""What somebody else changes in a route is told apart from what a command wrote."""

import re
from collections.abc import Callable

import pytest

from tests.unit.mesh.route_kinds import ISTIO, Kind, Stored
from weightshift.contracts.identity import Fence
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.mesh.command_annotation import ANNOTATION


def _set_weights(kind: Kind, stored: Stored, *weights: int) -> None:
    for entry, weight in zip(kind.owned(stored)[kind.dialect.backends_field], weights, strict=True):
        entry["weight"] = weight


def _drop_mirrors(kind: Kind, stored: Stored) -> None:
    del kind.owned(stored)["mirrors" if kind is ISTIO else "filters"]


def _edit_fence(kind: Kind, stored: Stored) -> None:
    text = stored["metadata"]["annotations"][ANNOTATION]
    stored["metadata"]["annotations"][ANNOTATION] = text.replace('"epoch":3', '"epoch":1')


def _spoil_annotation(kind: Kind, stored: Stored) -> None:
    stored["metadata"]["annotations"][ANNOTATION] = "100"


def _drop_annotation(kind: Kind, stored: Stored) -> None:
    del stored["metadata"]["annotations"][ANNOTATION]


def _drop_sticky_rule(kind: Kind, stored: Stored) -> None:
    rules = kind.rules(stored)
    rules.remove(next(rule for rule in rules if rule.get("name") == "weightshift-sticky-canary"))


STICKY = TrafficSplit.with_canary(25, sticky=True)
MIRRORED = TrafficSplit.with_canary(100, mirrored=5)


@pytest.mark.parametrize(
    ("split", "edit", "told"),
    [
        (STICKY, lambda kind, stored: _set_weights(kind, stored, 50, 50), "weights are 50/50.*set 75/25"),
        (STICKY, lambda kind, stored: _set_weights(kind, stored, 0, 0), "weights are 0/0"),
        (STICKY, _drop_sticky_rule, "sticky users"),
        (STICKY, _drop_annotation, "no annotation"),
        (STICKY, _edit_fence, "was edited"),
        (STICKY, _spoil_annotation, "cannot be read"),
        (MIRRORED, _drop_mirrors, "0 % are mirrored.*set 5 %"),
    ],
)
def test_what_somebody_else_changes_is_drift_and_the_next_command_overrides_it(
    kind: Kind, split: TrafficSplit, edit: Callable[[Kind, Stored], None], told: str
) -> None:
    stored = kind.written(kind.stored(100, 0), split)
    edit(kind, stored)
    state = kind.route().state_of(stored)
    assert state.drift is not None
    assert re.search(told, state.drift)
    back = kind.written(stored, TrafficSplit.with_canary(0), Fence(epoch=3, sequence=2))
    assert kind.route().state_of(back) == MeshState(
        split=TrafficSplit.with_canary(0), fence=Fence(epoch=3, sequence=2)
    )
    assert kind.without_ours(back) == kind.without_ours(kind.stored(100, 0))

"""What is changed in a VirtualService and an HTTPRoute, and what is left alone."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kubernetes_api.objects import backend
from tests.unit.mesh.route_kinds import FENCE, GATEWAY, ISTIO, Kind
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import RouteInvalid

splits = (
    st.builds(TrafficSplit.with_canary, st.integers(0, 100))
    | st.builds(TrafficSplit.with_canary, st.integers(0, 100), sticky=st.just(True))
    | st.builds(TrafficSplit.with_canary, st.just(100), mirrored=st.integers(1, 100))
)


@pytest.mark.parametrize("kind", [ISTIO, GATEWAY], ids=lambda kind: kind.plural)
@settings(deadline=None, max_examples=30)  # each example is validated against whole schemas
@given(commands=st.lists(splits, min_size=1, max_size=5), other=st.none() | st.integers(1, 50))
def test_commands_are_read_back_and_touch_nothing_else(
    kind: Kind, commands: list[TrafficSplit], other: int | None
) -> None:
    before = stored = kind.stored(100, 0, other=other)
    for number, split in enumerate(commands, start=1):
        fence = Fence(epoch=1, sequence=number)
        stored = kind.written(stored, split, fence)
        assert kind.route().state_of(stored) == MeshState(split=split, fence=fence)
        assert kind.route().operations(stored, split, fence) == []
    stored = kind.written(stored, TrafficSplit.with_canary(0), Fence(epoch=2, sequence=0))
    assert kind.without_ours(stored) == kind.without_ours(before)


@settings(deadline=None, max_examples=30)
@given(percent=st.integers(0, 100), other=st.integers(1, 1_000))
def test_an_unmanaged_destination_keeps_its_share(percent: int, other: int) -> None:
    stored = ISTIO.written(ISTIO.stored(80, 10, other=other), TrafficSplit.with_canary(percent))
    stable, shadow, canary = ISTIO.weights(stored)
    assert (shadow, stable + canary) == (other, 90)


def test_a_route_nobody_has_written_to_has_no_fence(kind: Kind) -> None:
    assert kind.route().state_of(kind.stored(100, 0)) == MeshState(split=TrafficSplit.with_canary(0))
    assert kind.route().state_of(kind.stored(3, 1)) == MeshState(split=TrafficSplit.with_canary(25))


def test_zero_is_written_and_never_left_out(kind: Kind) -> None:
    stored = kind.stored(100, 0)
    for entry in kind.owned(stored)[kind.dialect.backends_field]:
        entry.pop("weight")
    assert kind.weights(kind.written(stored, TrafficSplit.with_canary(0))) == [100, 0]
    assert kind.weights(kind.written(stored, TrafficSplit.with_canary(100))) == [0, 100]


def test_a_rule_is_found_by_name_or_by_being_the_only_one_with_both(kind: Kind) -> None:
    stored = kind.stored(70, 30)
    assert kind.route(rule="").state_of(stored).split == TrafficSplit.with_canary(30)
    twin = {**copy.deepcopy(kind.owned(stored)), "name": "twin"}
    kind.rules(stored).append(twin)
    with pytest.raises(RouteInvalid, match="2 rules"):
        kind.route(rule="").state_of(stored)
    assert kind.route().state_of(stored).split == TrafficSplit.with_canary(30)
    twin["name"] = "predictions"
    with pytest.raises(RouteInvalid, match="2 rules named predictions"):
        kind.route().state_of(stored)


def test_a_missing_or_doubled_backend_is_refused(kind: Kind) -> None:
    stored = kind.stored(100, 0)
    entries = kind.owned(stored)[kind.dialect.backends_field]
    entries.append(copy.deepcopy(entries[1]))
    with pytest.raises(RouteInvalid, match="2 backends"):
        kind.route().state_of(stored)
    del entries[0], entries[1:]
    with pytest.raises(RouteInvalid, match="0 backends"):
        kind.route().state_of(stored)


@pytest.mark.parametrize("rule", ["predictions", ""])
@pytest.mark.parametrize("canary", [25, 100])
def test_without_the_canarys_backend_all_can_go_to_stable_and_nothing_else(
    kind: Kind, rule: str, canary: int
) -> None:
    before = TrafficSplit.with_canary(canary, sticky=canary < 100)
    stored = kind.written(kind.stored(100, 0), before)
    del kind.owned(stored)[kind.dialect.backends_field][1]
    assert f"the last command set {100 - canary}/{canary}" in (
        kind.route(rule=rule).state_of(stored).drift or ""
    )
    with pytest.raises(RouteInvalid, match="0 backends"):
        kind.route(rule=rule).operations(stored, TrafficSplit.with_canary(5), FENCE)
    back = TrafficSplit.with_canary(0)
    stored = kind.written(stored, back)
    assert kind.weights(stored) == [100]
    assert len(kind.rules(stored)) == len(kind.rules(kind.stored(100, 0)))
    assert kind.route(rule=rule).state_of(stored) == MeshState(split=back, fence=FENCE)


def test_a_missing_rule_is_refused(kind: Kind) -> None:
    with pytest.raises(RouteInvalid, match="0 rules named other"):
        kind.route(rule="other").state_of(kind.stored(100, 0))


@pytest.mark.parametrize("field", ["tls", "tcp"])
def test_a_virtual_service_without_http_routes_is_named(field: str) -> None:
    stored = {"metadata": {"name": "ranker"}, "spec": {"hosts": ["ranker"], field: [{"route": []}]}}
    with pytest.raises(RouteInvalid, match=f"only {field} routes"):
        ISTIO.route().state_of(stored)


def test_a_route_of_another_service_is_left_alone(kind: Kind) -> None:
    stored = kind.written(kind.stored(100, 0), TrafficSplit.with_canary(5))
    with pytest.raises(RouteInvalid, match="belongs to test/ranker"):
        kind.route(service=Service(model="other", environment="test")).state_of(stored)


def test_sticky_users_get_rules_beside_the_owners_and_lose_them_at_the_end(kind: Kind) -> None:
    stored = kind.written(kind.stored(100, 0), TrafficSplit.with_canary(25, sticky=True))
    names = [rule.get("name") for rule in kind.rules(stored)]
    ours = ["weightshift-sticky-canary", "weightshift-sticky-stable"]
    expected = ["admin", *ours, "predictions", "rest"] if kind is ISTIO else ["admin", "predictions", *ours]
    assert names == expected
    canary, stable = (rule for rule in kind.rules(stored) if rule.get("name") in ours)
    assert [entry["weight"] for entry in canary[kind.dialect.backends_field]] == [0, 100]
    assert [entry["weight"] for entry in stable[kind.dialect.backends_field]] == [100, 0]
    assert kind.dialect.pattern_of(canary) == "^([0-9]|1[0-9]|2[0-4])$"
    same = {name: value for name, value in kind.owned(stored).items() if name in ("timeout", "timeouts")}
    assert same.items() <= canary.items()
    after = kind.written(stored, TrafficSplit.with_canary(100))
    assert [rule.get("name") for rule in kind.rules(after)] == [
        rule.get("name") for rule in kind.rules(kind.stored(100, 0))
    ]


def test_sticky_rules_follow_what_the_owner_changes_in_the_rule(kind: Kind) -> None:
    field = "timeout" if kind is ISTIO else "timeouts"
    value: Any = "3s" if kind is ISTIO else {"request": "3s"}
    stored = kind.written(kind.stored(100, 0), TrafficSplit.with_canary(5, sticky=True))
    kind.owned(stored)[field] = value
    assert kind.route().state_of(stored).drift is None, "the owner's to change"
    after = kind.written(stored, TrafficSplit.with_canary(25, sticky=True), Fence(epoch=3, sequence=2))
    assert [rule.get(field) for rule in kind.rules(after)].count(value) == 3


def test_a_rule_that_matches_buckets_itself_is_refused(kind: Kind) -> None:
    header: Any = (
        {"match": [{"headers": {"x-weightshift-bucket": {"exact": "1"}}}]}
        if kind is ISTIO
        else {"matches": [{"headers": [{"name": "x-weightshift-bucket", "value": "1"}]}]}
    )
    with pytest.raises(RouteInvalid, match="leave it to sticky users"):
        kind.written(kind.stored(100, 0, **header), TrafficSplit.with_canary(5, sticky=True))


def test_sticky_rules_that_do_not_fit_are_refused() -> None:
    stored = GATEWAY.stored(100, 0)
    GATEWAY.rules(stored).extend({"name": f"rule-{number}", "matches": [{}]} for number in range(13))
    with pytest.raises(RouteInvalid, match="17 rules"):
        GATEWAY.route().operations(stored, TrafficSplit.with_canary(5, sticky=True), FENCE)
    GATEWAY.route().operations(stored, TrafficSplit.with_canary(5), FENCE)


def test_the_owners_mirrors_stay(kind: Kind) -> None:
    rule: Any = (
        {"mirrors": [{"destination": {"host": "shadow"}, "percentage": {"value": 1.5}}]}
        if kind is ISTIO
        else {
            "filters": [{"type": "RequestMirror", "requestMirror": {"backendRef": backend("shadow", None)}}]
        }
    )
    field = "mirrors" if kind is ISTIO else "filters"
    before = kind.stored(100, 0, **rule)
    during = kind.written(before, TrafficSplit.with_canary(100, mirrored=5))
    assert kind.owned(during)[field][:1] == kind.owned(before)[field]
    assert len(kind.owned(during)[field]) == 2
    after = kind.written(during, TrafficSplit.with_canary(0), Fence(epoch=3, sequence=2))
    assert kind.without_ours(after) == kind.without_ours(before)


def test_an_owners_mirror_to_stable_is_not_taken_for_ours(kind: Kind) -> None:
    before = kind.stored(100, 0)
    ours = kind.written(before, TrafficSplit.with_canary(100, mirrored=5))
    del ours["metadata"]["annotations"]
    drift = kind.route().state_of(ours).drift
    assert drift is not None
    assert "a mirror to stable" in drift


def test_an_old_style_mirror_is_refused_only_where_it_is_in_the_way() -> None:
    stored = ISTIO.stored(100, 0, mirror={"host": "shadow"}, mirrorPercentage={"value": 10.0})
    ISTIO.written(stored, TrafficSplit.with_canary(100))
    with pytest.raises(RouteInvalid, match="`mirror` of its own"):
        ISTIO.written(stored, TrafficSplit.with_canary(100, mirrored=5))

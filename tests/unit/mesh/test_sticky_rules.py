"""Which bucket goes where, and in which order the rules of sticky users are heard."""

import re
from typing import Any

import pytest

from tests.kubernetes_api.objects import backend, destination, http_route, virtual_service
from tests.kubernetes_api.patches import json_patch
from tests.kubernetes_api.schemas import resource_kind
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import TrafficSplit
from weightshift.mesh.http_route import HttpRouteDialect
from weightshift.mesh.virtual_service import VirtualServiceDialect
from weightshift.mesh.weighted_route import STICKY_CANARY, STICKY_STABLE, WeightedRoute

SERVICE = Service(model="ranker", environment="test")
Stored = dict[str, Any]
ISTIO = WeightedRoute(
    service=SERVICE, dialect=VirtualServiceDialect(), rule="predictions", stable="stable", canary="canary"
)
GATEWAY = WeightedRoute(
    service=SERVICE,
    dialect=HttpRouteDialect(),
    rule="predictions",
    stable="ranker-stable",
    canary="ranker-canary",
)


def written(route: WeightedRoute, stored: Stored, split: TrafficSplit, sequence: int = 1) -> Stored:
    plural = "virtualservices" if route is ISTIO else "httproutes"
    patched = json_patch(stored, route.operations(stored, split, Fence(epoch=1, sequence=sequence)))
    return resource_kind(plural).admit(patched)


def names(rules: list[Stored]) -> list[str | None]:
    return [rule.get("name") for rule in rules]


@pytest.mark.parametrize("percent", [1, 5, 25, 50, 99])
@pytest.mark.parametrize("route", [ISTIO, GATEWAY], ids=["istio", "gateway"])
def test_every_bucket_belongs_to_one_cohort(route: WeightedRoute, percent: int) -> None:
    before = virtual_service() if route is ISTIO else http_route()
    spec = written(route, before, TrafficSplit.with_canary(percent, sticky=True))["spec"]
    rules = {rule.get("name"): rule for rule in spec.get("http") or spec["rules"]}
    dialect = VirtualServiceDialect() if route is ISTIO else HttpRouteDialect()
    canary, stable = (
        {one for one in range(100) if re.match(dialect.pattern_of(rules[name]) or "", str(one))}
        for name in (STICKY_CANARY, STICKY_STABLE)
    )
    assert canary == set(range(percent))
    assert stable == set(range(percent, 100))


def test_rules_that_are_no_longer_heard_are_drift_and_are_put_back() -> None:
    before = virtual_service(destination("stable", 100), destination("canary", 0))
    stored = written(ISTIO, before, TrafficSplit.with_canary(25, sticky=True))
    rules = stored["spec"]["http"]
    rules.append(rules.pop(1))
    assert "sticky users" in (ISTIO.state_of(stored).drift or "")
    again = written(ISTIO, stored, TrafficSplit.with_canary(25, sticky=True), 2)
    assert ISTIO.state_of(again).drift is None
    assert names(again["spec"]["http"])[1:4] == [STICKY_CANARY, STICKY_STABLE, "predictions"]
    after = written(ISTIO, stored, TrafficSplit.with_canary(0), 2)
    assert names(after["spec"]["http"]) == ["admin", "predictions", "rest"]


def test_an_owners_header_route_outranks_sticky_rules_as_it_outranks_the_owners_rule() -> None:
    """With as many headers as ours, it is the earlier of two equals."""
    stored = http_route()
    testers = {"name": "testers", "matches": [{"headers": [{"name": "x-tester", "value": "yes"}]}]}
    stored["spec"]["rules"].append({**testers, "backendRefs": [backend("ranker-canary", 1)]})
    after = names(written(GATEWAY, stored, TrafficSplit.with_canary(25, sticky=True))["spec"]["rules"])
    assert after.index("testers") < after.index(STICKY_CANARY)

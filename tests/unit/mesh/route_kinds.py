"""The two kinds of objects that carry a split, built and changed alike."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.kubernetes_api.objects import backend, destination, http_route, virtual_service
from tests.kubernetes_api.patches import json_patch
from tests.kubernetes_api.schemas import resource_kind
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import TrafficSplit
from weightshift.mesh.command_annotation import ANNOTATION
from weightshift.mesh.http_route import HttpRouteDialect
from weightshift.mesh.route_dialect import Dialect
from weightshift.mesh.virtual_service import VirtualServiceDialect
from weightshift.mesh.weighted_route import WeightedRoute

SERVICE = Service(model="ranker", environment="test")
FENCE = Fence(epoch=3, sequence=1)
Stored = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of object: how to build one, and what its parts are called."""

    plural: str
    dialect: Dialect
    build: Callable[..., Stored]
    entry: Callable[..., Stored]
    names: tuple[str, str]

    def stored(self, *weights: int, other: int | None = None, **rule: Any) -> Stored:
        """Build an object as the API server keeps it."""
        entries = [self.entry(name, weight) for name, weight in zip(self.names, weights, strict=True)]
        if other is not None:
            entries.insert(1, self.entry("shadow", other))
        return resource_kind(self.plural).admit(self.build(*entries, **rule))

    def route(self, *, rule: str = "predictions", service: Service = SERVICE) -> WeightedRoute:
        stable, canary = self.names
        return WeightedRoute(service=service, dialect=self.dialect, rule=rule, stable=stable, canary=canary)

    def written(self, stored: Stored, split: TrafficSplit, fence: Fence = FENCE) -> Stored:
        """Return the object after a command, as the API server keeps it."""
        patched = json_patch(stored, self.route().operations(stored, split, fence))
        return resource_kind(self.plural).admit(patched)

    def rules(self, stored: Stored) -> list[Stored]:
        rules: list[Stored] = stored["spec"][self.dialect.rules_field]
        return rules

    def owned(self, stored: Stored) -> Stored:
        return next(rule for rule in self.rules(stored) if rule.get("name") == "predictions")

    def weights(self, stored: Stored) -> list[int]:
        return [entry["weight"] for entry in self.owned(stored)[self.dialect.backends_field]]

    def without_ours(self, stored: Stored) -> Stored:
        """Return the object without what a command may change."""
        rest = copy.deepcopy(stored)
        rest["metadata"].get("annotations", {}).pop(ANNOTATION, None)
        rest["metadata"]["annotations"] = rest["metadata"].get("annotations", {})
        for entry in self.owned(rest)[self.dialect.backends_field]:
            if "shadow" not in str(entry):
                del entry["weight"]
        return rest


ISTIO = Kind("virtualservices", VirtualServiceDialect(), virtual_service, destination, ("stable", "canary"))
GATEWAY = Kind("httproutes", HttpRouteDialect(), http_route, backend, ("ranker-stable", "ranker-canary"))

"""The route of one service in an object of Kubernetes: what it does, and how to change it. Pure.

An object holds rules, a rule holds weighted backends. Two weights are ours, the rules named here, and one
annotation; everything else is the owner's and is neither written nor read further than it has to be.
"""

from dataclasses import dataclass
from typing import NamedTuple

from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import RouteInvalid
from weightshift.mesh.buckets import BUCKETS, bucket_pattern
from weightshift.mesh.command_annotation import ANNOTATION, Recorded, annotation_value, read_annotation
from weightshift.mesh.route_dialect import Dialect, Object, Operation
from weightshift.mesh.shares import apportion, owned_share, percent_of

STICKY_CANARY = "weightshift-sticky-canary"
STICKY_STABLE = "weightshift-sticky-stable"
_STICKY = (STICKY_CANARY, STICKY_STABLE)


class StickyRule(NamedTuple):
    """A rule for the users of one cohort: whose buckets, and the weights of stable and canary."""

    pattern: str
    weights: tuple[int, int]


@dataclass(frozen=True)
class Shape:
    """What of a route is ours: the weights, the mirrored percentage, and the sticky rules by name.

    `in_order` is whether the sticky rules are where they are heard.
    """

    weights: tuple[int, int]
    mirrored: float
    sticky: dict[str, StickyRule]
    in_order: bool = True


@dataclass(frozen=True)
class Found:
    """The one rule with our backends, and where it is; `canary` is None where the owner took it out."""

    rules: list[Object]
    index: int
    stable: int
    canary: int | None

    @property
    def rule(self) -> Object:
        """The rule itself."""
        return self.rules[self.index]


class WeightedRoute:
    """One service's rule, by its name (empty: the only one with both backends)."""

    def __init__(self, *, service: Service, dialect: Dialect, rule: str, stable: str, canary: str) -> None:
        self._service = service
        self._dialect = dialect
        self._rule = rule
        self._names = (stable, canary)

    def state_of(self, stored: Object) -> MeshState:
        """Return what an object does, with its `drift`. Raises `RouteInvalid`."""
        found, recorded = self._find(stored), read_annotation(self._service, stored)
        shape = self._shape(found)
        plain = TrafficSplit.with_canary(percent_of(*shape.weights))
        fence = recorded.state.fence if recorded.state else None
        drift = recorded.problem or self._difference(shape, recorded)
        if drift is not None or recorded.state is None:
            return MeshState(split=plain, fence=fence, drift=drift)
        return recorded.state

    def operations(self, stored: Object, split: TrafficSplit, fence: Fence) -> list[Operation]:
        """Return the JSON patch that makes an object do a split. Raises `RouteInvalid`.

        Without the canary's backend all can go to stable, and nothing else.
        """
        found = self._find(stored)
        if found.canary is None and split.canary:
            raise self._not_one(0, self._names[1])
        share = self._share(found, read_annotation(self._service, stored))
        return [
            *self._rule_operations(found, split, share),
            *_annotate(stored, annotation_value(self._service, split, fence, share)),
        ]

    # --- reading --------------------------------------------------------------------------------

    def _find(self, stored: Object) -> Found:
        rules = stored.get("spec", {}).get(self._dialect.rules_field) or []
        if not rules:
            raise RouteInvalid(self._dialect.describe(stored))
        # Where the owner took the canary out, stable alone tells the rule: all must find its way back to it.
        named = self._ours(rules, self._names) or self._ours(rules, self._names[:1])
        if len(named) != 1:
            wanted = f"named {self._rule}" if self._rule else f"with both {' and '.join(self._names)}"
            raise RouteInvalid(f"{len(named)} rules {wanted}, not one; name one, see WEIGHTSHIFT_MESH_ROUTE")
        backends = rules[named[0]].get(self._dialect.backends_field) or []
        stable, canary = (self._positions(backends, name) for name in self._names)
        if len(stable) != 1:
            raise self._not_one(len(stable), self._names[0])
        if len(canary) > 1:
            raise self._not_one(len(canary), self._names[1])
        return Found(rules, named[0], stable[0], canary[0] if canary else None)

    def _ours(self, rules: list[Object], names: tuple[str, ...]) -> list[int]:
        """Return where the rules are that have the settings' name, or else all of these backends."""
        field = self._dialect.backends_field
        return [
            index
            for index, rule in enumerate(rules)
            if rule.get("name") not in _STICKY
            and (
                rule.get("name") == self._rule
                if self._rule
                else all(self._positions(rule.get(field) or [], name) for name in names)
            )
        ]

    def _positions(self, backends: list[Object], name: str) -> list[int]:
        return [i for i, one in enumerate(backends) if self._dialect.is_backend(one, name)]

    def _not_one(self, count: int, name: str) -> RouteInvalid:
        where = f"of rule {self._rule}" if self._rule else "of the rule"
        return RouteInvalid(f"{count} backends {where} are {name}, not one; correct the route")

    def _shape(self, found: Found) -> Shape:
        sticky = {}
        for rule in found.rules:
            if rule.get("name") in _STICKY:
                weights = self._weights(rule.get(self._dialect.backends_field) or [], found)
                sticky[rule["name"]] = StickyRule(self._dialect.pattern_of(rule) or "", weights)
        backends = found.rule[self._dialect.backends_field]
        mirrored = self._dialect.mirrored(found.rule, backends[found.stable])
        return Shape(self._weights(backends, found), mirrored, sticky, self._in_order(found))

    def _in_order(self, found: Found) -> bool:
        after = {rule.get("name") for rule in found.rules[found.index :]}
        return not (self._dialect.first_match_wins and after.intersection(_STICKY))

    def _weights(self, backends: list[Object], found: Found) -> tuple[int, int]:
        if len(backends) <= max(found.stable, found.canary or 0):
            return 0, 0
        canary = 0 if found.canary is None else self._weight(backends[found.canary])
        return self._weight(backends[found.stable]), canary

    def _weight(self, backend: Object) -> int:
        return int(backend.get("weight", self._dialect.default_weight))

    def _share(self, found: Found, recorded: Recorded) -> int:
        backends = found.rule[self._dialect.backends_field]
        weights = self._weights(backends, found)
        others = sum(self._weight(one) for one in backends) - sum(weights)
        if others and recorded.share is not None:
            return recorded.share
        return owned_share(*weights, others)

    def _difference(self, shape: Shape, recorded: Recorded) -> str | None:
        """Return what somebody else changed, compared with the recorded command."""
        ours = "/".join(str(weight) for weight in shape.weights)
        if min(shape.weights) < 0:
            return f"the weights are {ours}, and none may be below zero"
        if recorded.state is None or recorded.share is None:
            return _unclaimed(shape)
        split = recorded.state.split
        expected = Shape(
            apportion(split, recorded.share), split.mirrored, _sticky_shape(split, recorded.share)
        )
        if shape.weights != expected.weights:
            theirs = "/".join(str(weight) for weight in expected.weights)
            return f"the weights are {ours}, and the last command set {theirs}"
        if shape.mirrored != expected.mirrored:
            return f"{shape.mirrored:g} % are mirrored, and the last command set {expected.mirrored} %"
        if not shape.in_order or shape.sticky != expected.sticky:
            return "the rules of sticky users are not those of the last command"
        return None

    # --- writing --------------------------------------------------------------------------------

    def _rule_operations(self, found: Found, split: TrafficSplit, share: int) -> list[Operation]:
        operations: list[Operation] = []
        rules, field = f"/spec/{self._dialect.rules_field}", self._dialect.backends_field
        wanted = self._sticky_rules(found, split, share)
        present = [rule for rule in found.rules if rule.get("name") in _STICKY]
        renewed = present != wanted or not self._in_order(found)
        index = found.index
        if renewed:
            for position in reversed(range(len(found.rules))):
                if found.rules[position].get("name") in _STICKY:
                    operations.append({"op": "remove", "path": f"{rules}/{position}"})
                    index -= position < found.index
        path = f"{rules}/{index}"
        weights = apportion(split, share)
        for backend, weight in zip((found.stable, found.canary), weights, strict=True):
            if backend is not None and found.rule[field][backend].get("weight") != weight:
                weight_path = f"{path}/{field}/{backend}/weight"
                operations.append({"op": "add", "path": weight_path, "value": weight})
        operations += _changed(found.rule, self._mirrored(found, split), self._dialect.mirrors_field, path)
        if renewed:
            self._dialect.check_limits(found.rules, wanted)
            operations += self._added(wanted, before=path, end=f"{rules}/-")
        return operations

    def _added(self, wanted: list[Object], *, before: str, end: str) -> list[Operation]:
        """Put our rules before the owner's; or last, so that none of the owner's other rules loses."""
        if self._dialect.first_match_wins:
            return [{"op": "add", "path": before, "value": rule} for rule in reversed(wanted)]
        return [{"op": "add", "path": end, "value": rule} for rule in wanted]

    def _mirrored(self, found: Found, split: TrafficSplit) -> Object:
        """Return the owner's rule with the mirrored share of a split."""
        rule, field = found.rule, self._dialect.mirrors_field
        stable = rule[self._dialect.backends_field][found.stable]
        if self._dialect.mirrored(rule, stable) == split.mirrored:
            return rule
        mirrors = self._dialect.mirrors(rule, stable, split.mirrored)
        rest = {name: value for name, value in rule.items() if name != field}
        return {**rest, field: mirrors} if mirrors else rest

    def _sticky_rules(self, found: Found, split: TrafficSplit, share: int) -> list[Object]:
        """Return our two rules: the owner's rule once more, for the buckets of one cohort each."""
        wanted: list[Object] = []
        owners = self._mirrored(found, split)
        for name, sticky in _sticky_shape(split, share).items():
            if found.canary is None:
                continue
            backends = [dict(one) for one in found.rule[self._dialect.backends_field]]
            backends[found.stable]["weight"], backends[found.canary]["weight"] = sticky.weights
            rule = {**owners, "name": name, self._dialect.backends_field: backends}
            matches = self._dialect.for_buckets(owners, sticky.pattern)
            wanted.append({**rule, self._dialect.matches_field: matches})
        return wanted


def _sticky_shape(split: TrafficSplit, share: int) -> dict[str, StickyRule]:
    if not split.sticky or split.is_terminal:
        return {}
    canary, stable = TrafficSplit.all_to(Cohort.CANARY), TrafficSplit.all_to(Cohort.STABLE)
    return {
        STICKY_CANARY: StickyRule(bucket_pattern(0, split.canary - 1), apportion(canary, share)),
        STICKY_STABLE: StickyRule(bucket_pattern(split.canary, BUCKETS - 1), apportion(stable, share)),
    }


def _changed(before: Object, after: Object, field: str, path: str) -> list[Operation]:
    """Return the patch of one field of a rule; nothing where it stays."""
    if before.get(field) == after.get(field):
        return []
    if field not in after:
        return [{"op": "remove", "path": f"{path}/{field}"}]
    return [{"op": "add", "path": f"{path}/{field}", "value": after[field]}]


def _annotate(stored: Object, value: str) -> list[Operation]:
    annotations = stored.get("metadata", {}).get("annotations")
    if annotations is None:
        return [{"op": "add", "path": "/metadata/annotations", "value": {ANNOTATION: value}}]
    if annotations.get(ANNOTATION) == value:
        return []
    escaped = ANNOTATION.replace("~", "~0").replace("/", "~1")
    return [{"op": "add", "path": f"/metadata/annotations/{escaped}", "value": value}]


def _unclaimed(shape: Shape) -> str | None:
    """Return what looks like ours in a route that no command has written; it may be the owner's."""
    found = [f"rule {name}" for name in shape.sticky]
    if shape.mirrored:
        found.append("a mirror to stable")
    return f"there is {' and '.join(found)}, and no annotation {ANNOTATION}" if found else None

"""How Istio's VirtualService says a weighted route. Pure."""

from typing import Any

from weightshift.errors import RouteInvalid
from weightshift.mesh.buckets import BUCKET_HEADER

Object = dict[str, Any]


class VirtualServiceDialect:
    """`spec.http[].route[].weight`, by subset, or by host where there is no subset."""

    rules_field = "http"
    backends_field = "route"
    matches_field = "match"
    mirrors_field = "mirrors"
    default_weight = 0
    first_match_wins = True

    def describe(self, stored: Object) -> str:
        """Say what a VirtualService without http routes holds instead."""
        others = [name for name in ("tls", "tcp") if stored.get("spec", {}).get(name)]
        holds = f"only {' and '.join(others)} routes" if others else "no routes"
        return f"the VirtualService has {holds}; add an http route to stable and canary"

    def is_backend(self, backend: Object, name: str) -> bool:
        """Whether a destination has this subset, or this host and no subset."""
        destination = backend.get("destination", {})
        return bool(destination.get("subset", destination.get("host")) == name)

    def pattern_of(self, rule: Object) -> str | None:
        """Return the one pattern of buckets that every match asks for."""
        patterns = {
            match.get("headers", {}).get(BUCKET_HEADER, {}).get("regex") for match in rule.get("match", [])
        }
        return patterns.pop() if len(patterns) == 1 else None

    def for_buckets(self, rule: Object, pattern: str) -> list[Object]:
        """Return the rule's matches, each with the bucket's header. Raises `RouteInvalid`."""
        matches = rule.get("match") or [{}]
        if any(BUCKET_HEADER in match.get("headers", {}) for match in matches):
            raise RouteInvalid(f"the rule matches {BUCKET_HEADER} already; leave it to sticky users")
        bucket = {BUCKET_HEADER: {"regex": pattern}}
        return [{**match, "headers": {**match.get("headers", {}), **bucket}} for match in matches]

    def mirrored(self, rule: Object, stable: Object) -> float:
        """Return the percentage of the entry of `mirrors` that goes to stable; without one it is all."""
        for mirror in rule.get("mirrors", []):
            if mirror["destination"] == stable["destination"]:
                return float(mirror.get("percentage", {}).get("value", 100))
        return 0

    def mirrors(self, rule: Object, stable: Object, percent: int) -> list[Object]:
        """Return `mirrors` with one entry for stable; the owner's entries stay.

        Raises `RouteInvalid` when the rule has a `mirror`, beside which Istio accepts no `mirrors`.
        """
        if percent and "mirror" in rule:
            raise RouteInvalid("the rule has a `mirror` of its own; say it as `mirrors`, so that both fit")
        destination = stable["destination"]
        mirrors = [one for one in rule.get("mirrors", []) if one["destination"] != destination]
        if percent:
            mirrors.append({"destination": destination, "percentage": {"value": percent}})
        return mirrors

    def check_limits(self, rules: list[Object], added: list[Object]) -> None:
        """A VirtualService takes as many rules as it is given."""

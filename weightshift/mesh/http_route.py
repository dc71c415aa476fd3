"""How the Gateway API's HTTPRoute says a weighted route. Pure."""

from typing import Any

from weightshift.errors import RouteInvalid
from weightshift.mesh.buckets import BUCKET_HEADER

Object = dict[str, Any]

_MIRROR = "RequestMirror"
_REFERENCE = ("group", "kind", "name", "namespace", "port")
_MAX_RULES = 16
_MAX_MATCHES = 128


class HttpRouteDialect:
    """`spec.rules[].backendRefs[].weight`, by the name of the backend."""

    rules_field = "rules"
    backends_field = "backendRefs"
    matches_field = "matches"
    mirrors_field = "filters"
    default_weight = 1
    first_match_wins = False

    def describe(self, stored: Object) -> str:
        """Say what an HTTPRoute without rules lacks."""
        return "the HTTPRoute has no rules; add one to stable and canary"

    def is_backend(self, backend: Object, name: str) -> bool:
        """Whether a reference is to a backend of this name."""
        return bool(backend.get("name") == name)

    def pattern_of(self, rule: Object) -> str | None:
        """Return the one pattern of buckets that every match asks for."""
        patterns = {
            next((one["value"] for one in match.get("headers", []) if one["name"] == BUCKET_HEADER), None)
            for match in rule.get("matches", [])
        }
        return patterns.pop() if len(patterns) == 1 else None

    def for_buckets(self, rule: Object, pattern: str) -> list[Object]:
        """Return the rule's matches, each with the bucket's header. Raises `RouteInvalid`."""
        matches = rule.get("matches") or [{}]
        if any(one["name"].lower() == BUCKET_HEADER for match in matches for one in match.get("headers", [])):
            raise RouteInvalid(f"the rule matches {BUCKET_HEADER} already; leave it to sticky users")
        bucket = {"type": "RegularExpression", "name": BUCKET_HEADER, "value": pattern}
        return [{**match, "headers": [*match.get("headers", []), bucket]} for match in matches]

    def mirrored(self, rule: Object, stable: Object) -> float:
        """Return the percentage of the rule's filter that copies to stable; without one it is all."""
        for one in rule.get("filters", []):
            if _copies_to(one, stable):
                request_mirror = one["requestMirror"]
                fraction = request_mirror.get("fraction")
                if fraction is not None:
                    return float(100 * fraction["numerator"] / fraction.get("denominator", 100))
                return float(request_mirror.get("percent", 100))
        return 0

    def mirrors(self, rule: Object, stable: Object, percent: int) -> list[Object]:
        """Return `filters` with one that copies to stable; the owner's filters stay."""
        filters = [one for one in rule.get("filters", []) if not _copies_to(one, stable)]
        if percent:
            reference = {name: stable[name] for name in _REFERENCE if name in stable}
            copies = {"backendRef": reference, "percent": percent}
            filters.append({"type": _MIRROR, "requestMirror": copies})
        return filters

    def check_limits(self, rules: list[Object], added: list[Object]) -> None:
        """See that the added rules stay within what an HTTPRoute may hold. Raises `RouteInvalid`."""
        names = {rule["name"] for rule in added}
        after = [*(rule for rule in rules if rule.get("name") not in names), *added]
        matches = sum(len(rule.get("matches", [{}])) for rule in after)
        if len(after) > _MAX_RULES or matches > _MAX_MATCHES:
            raise RouteInvalid(
                f"sticky users need {len(after)} rules and {matches} matches, and an HTTPRoute holds "
                f"{_MAX_RULES} and {_MAX_MATCHES}; give the service a route of its own"
            )


def _copies_to(one: Object, backend: Object) -> bool:
    if one.get("type") != _MIRROR:
        return False
    reference = one.get("requestMirror", {}).get("backendRef", {})
    return bool(
        reference.get("name") == backend.get("name")
        and reference.get("namespace") == backend.get("namespace")
    )

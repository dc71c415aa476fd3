"""What a kind of Kubernetes route says of itself, so that `weighted_route.py` can read and change it."""

from typing import Any, Protocol

Object = dict[str, Any]
Operation = dict[str, Any]


class Dialect(Protocol):
    """What differs between the kinds of route: where things are, and how matches and mirrors are said.

    The fields name the lists; `default_weight` is that of a backend without one. Of several rules that match
    a request, the first wins, or else the most specific one and the first of equals.
    """

    rules_field: str
    backends_field: str
    matches_field: str
    mirrors_field: str
    default_weight: int
    first_match_wins: bool

    def describe(self, stored: Object) -> str:
        """Say what an object without any rule holds instead, for its error."""

    def is_backend(self, backend: Object, name: str) -> bool:
        """Whether a backend is the one that the settings call by this name."""

    def pattern_of(self, rule: Object) -> str | None:
        """Return the pattern of buckets that every match of a rule asks for, if there is one."""

    def for_buckets(self, rule: Object, pattern: str) -> list[Object]:
        """Return a rule's matches, each of them only for the buckets of a pattern."""

    def mirrored(self, rule: Object, stable: Object) -> float:
        """Return the percentage of a rule's requests that is copied to stable's backend."""

    def mirrors(self, rule: Object, stable: Object, percent: int) -> list[Object]:
        """Return the list that holds a rule's mirrors, with this percentage for stable's backend.

        Raises `RouteInvalid` when something of the owner's is in the way.
        """

    def check_limits(self, rules: list[Object], added: list[Object]) -> None:
        """See that so many rules may be added. Raises `RouteInvalid`."""

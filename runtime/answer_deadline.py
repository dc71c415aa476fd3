"""Until when an answer is of use: what the proxy says, and never longer than this instance's own limit."""

from collections.abc import Iterable

_HEADER = b"x-envoy-expected-rq-timeout-ms"
_SHORTEST_SECONDS = 0.05
"""Below this a refusal could not be sooner than the proxy, so the header is of no use."""
_MARGIN_SHARE, _MARGIN_SECONDS = 0.05, 0.02
_MOST_DIGITS = 9


def answer_seconds(headers: Iterable[tuple[bytes, bytes]], longest: float) -> float:
    """Return how many seconds after its arrival a request is answered at the latest.

    Envoy and Istio name the milliseconds that they wait; a refusal a little before is an answer that is
    counted, instead of a connection that ends. A header that names no usable time is ignored.
    """
    named = next((value for name, value in headers if name == _HEADER), b"")
    if not named.isdigit() or len(named) > _MOST_DIGITS:
        return longest
    seconds = int(named) / 1000
    if seconds < _SHORTEST_SECONDS:
        return longest
    return min(seconds - max(_MARGIN_SECONDS, seconds * _MARGIN_SHARE), longest)

"""How long a request may take, by what the proxy says."""

import pytest

from runtime.answer_deadline import answer_seconds

NAME = b"x-envoy-expected-rq-timeout-ms"
LONGEST = 30.0


@pytest.mark.parametrize(
    ("named", "seconds"), [(b"5000", 4.75), (b"100", 0.08), (b"50", 0.03), (b"60000", LONGEST)]
)
def test_the_refusal_comes_a_little_before_the_proxys_and_never_after_the_own_limit(
    named: bytes, seconds: float
) -> None:
    assert answer_seconds([(b"host", b"a"), (NAME, named)], LONGEST) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "named",
    [b"", b"0", b"49", b"-5000", b"5e3", b"5000.0", b"5000 ", b"\xb2", "\u0665".encode(), b"9" * 5000],
)
def test_a_time_that_means_nothing_is_ignored(named: bytes) -> None:
    assert answer_seconds([(NAME, named)], LONGEST) == LONGEST


def test_without_a_proxys_time_the_own_limit_counts() -> None:
    assert answer_seconds([(b"host", b"a")], LONGEST) == LONGEST

"""Users in a hundred buckets, so that a route can keep each of them on one cohort. Pure.

A request names its user's bucket, 0 to 99, in a header. The canary has the buckets below its percentage:
whoever is in it stays in it while it grows, and everybody else stays on stable until their bucket comes.
"""

import itertools

BUCKETS = 100
BUCKET_HEADER = "x-weightshift-bucket"


def bucket_pattern(first: int, last: int) -> str:
    """Return the regular expression of the numbers from `first` to `last`, 0 to 99, without leading zeros.

    Raises `ValueError` for an empty or impossible range.
    """
    if not 0 <= first <= last < BUCKETS:
        raise ValueError(f"no buckets from {first} to {last}")
    groups = itertools.groupby(range(first, last + 1), key=lambda number: number // 10)
    decades = [(tens, [number % 10 for number in numbers]) for tens, numbers in groups]
    return "^(" + "|".join(_merged(decades)) + ")$"


def _merged(decades: list[tuple[int, list[int]]]) -> list[str]:
    """Write neighbouring whole decades as one alternative; the first has numbers of one digit."""
    alternatives = []
    whole = [tens for tens, units in decades if tens and len(units) == 10]
    for tens, units in decades:
        if tens in whole:
            if tens == whole[0]:
                alternatives.append(_digits(whole[0], whole[-1]) + "[0-9]")
            continue
        alternatives.append((str(tens) if tens else "") + _digits(units[0], units[-1]))
    return alternatives


def _digits(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"

"""Samples as they were scraped, kept only for as long as an interval can still ask for them."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

Samples = tuple[tuple[float, float], ...]
"""(unix seconds, value) in time order."""


class Series(NamedTuple):
    """One series as scraped: labels, and (unix seconds, value) in time order."""

    labels: Mapping[str, str]
    samples: Samples


class Track(Protocol):
    """What is kept of one series; `born_inside` says that it did not exist before the first sample."""

    def __init__(self, *, born_inside: bool) -> None: ...

    def extend(self, samples: Samples) -> None:
        """Add what is newer than the newest sample so far."""

    def forget(self, before: float) -> None:
        """Drop what intervals that start at `before` (unix seconds) or later do not need."""


class CumulativeCounter:
    """A counter made monotone: resets add what was counted since, a birth counts from zero."""

    def __init__(self, *, born_inside: bool) -> None:
        self._times: list[float] = []
        self._totals: list[float] = []
        self._previous: float | None = 0.0 if born_inside else None

    def extend(self, samples: Samples) -> None:
        """Add what is newer than the newest sample so far."""
        newest = self._times[-1] if self._times else -math.inf
        total, previous = (self._totals[-1] if self._totals else 0.0), self._previous
        for at, value in samples:
            if at <= newest or not math.isfinite(value):
                continue
            if previous is not None:
                total += value - previous if value >= previous else value
            self._times.append(at)
            self._totals.append(total)
            previous = value
        self._previous = previous

    def forget(self, before: float) -> None:
        """Drop what intervals that start at `before` (unix seconds) or later do not need."""
        needed = bisect_right(self._times, before) - 1
        if needed > 0:
            del self._times[:needed], self._totals[:needed]

    def at(self, moment: float) -> float:
        """Return the events counted up to `moment`, by the last sample at or before it."""
        index = bisect_right(self._times, moment) - 1
        return self._totals[index] if index >= 0 else 0.0

    def between(self, start: float, end: float) -> int:
        """Return the events between two moments."""
        return round(self.at(end) - self.at(start))

    def has_sample(self, start: float, end: float) -> bool:
        """Whether anything was scraped after `start` and up to `end`."""
        return bisect_right(self._times, end) > bisect_right(self._times, start)


class Gauge:
    """A measured value; how it was before it was first seen says nothing."""

    def __init__(self, *, born_inside: bool) -> None:
        self._samples: list[tuple[float, float]] = []

    def extend(self, samples: Samples) -> None:
        """Add what is newer than the newest sample so far."""
        newest = self._samples[-1][0] if self._samples else -math.inf
        self._samples += [(at, value) for at, value in samples if at > newest and math.isfinite(value)]

    def forget(self, before: float) -> None:
        """Drop what intervals that start at `before` (unix seconds) or later do not need."""
        self._samples = [(at, value) for at, value in self._samples if at > before]

    def highest(self, start: float, end: float) -> float | None:
        """Return the largest sample after `start` and up to `end`, None without one."""
        return max((value for at, value in self._samples if start < at <= end), default=None)


T = TypeVar("T", bound=Track)

Labelled = list[tuple[Mapping[str, str], T]]


class SeriesTable(Generic[T]):
    """The series of one metric by arm (cohort, revision) and instance, added to read by read."""

    def __init__(self, track: type[T]) -> None:
        self._track = track
        self._known: dict[frozenset[tuple[str, str]], T] = {}
        self._arms: dict[tuple[str, str], dict[str, Labelled[T]]] = {}

    def add(self, series: Iterable[Series], *, born_after: float) -> bool:
        """Add samples, and return whether there was a series among them that was not known so far.

        Such a series was born inside when its first sample is after `born_after` (unix seconds).
        """
        known = len(self._known)
        for one in series:
            identity = frozenset(one.labels.items())
            track = self._known.get(identity)
            if track is None:
                first = next((at for at, value in one.samples if math.isfinite(value)), -math.inf)
                track = self._track(born_inside=first > born_after)
                self._known[identity] = track
                self.instances(one.labels).setdefault(one.labels.get("instance", ""), []).append(
                    (one.labels, track)
                )
            track.extend(one.samples)
        return len(self._known) > known

    def instances(self, labels: Mapping[str, str]) -> dict[str, Labelled[T]]:
        """Return the series of the arm that these labels name, by instance."""
        return self._arms.setdefault((labels.get("cohort", ""), labels.get("revision", "")), {})

    def of(self, cohort: str, revision: str) -> Mapping[str, Labelled[T]]:
        """Return an arm's series by instance."""
        return self._arms.get((cohort, revision), {})

    def of_revision(self, revision: str) -> dict[str, Labelled[T]]:
        """Return a revision's series by instance, whatever cohort they name."""
        merged: dict[str, Labelled[T]] = {}
        for (_, named), by_instance in self._arms.items():
            for name, series in by_instance.items() if named == revision else ():
                merged.setdefault(name, []).extend(series)
        return merged

    @property
    def tracks(self) -> Iterable[T]:
        """Every series, whatever its labels."""
        return self._known.values()

    def label_values(self, label: str) -> set[str]:
        """Return every value that a label has."""
        return {value for identity in self._known for name, value in identity if name == label}

    def forget(self, before: float) -> None:
        """Drop what intervals that start at `before` (unix seconds) or later do not need."""
        for track in self._known.values():
            track.forget(before)

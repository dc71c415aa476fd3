"""What an answer should be, and the figures kept about all of them. Pure."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

KEPT_FAILURES = 10
_TOLERANCE = 1e-4
_GROWTH = math.log(1.05)
_SHORTEST = 1e-4


class Item(NamedTuple):
    """One ranked candidate."""

    candidate: int
    score: float


@dataclass(frozen=True)
class Expectations:
    """Request bodies as bytes, and what each artifact answers to each: `answers[artifact][body]`."""

    bodies: tuple[bytes, ...]
    answers: Mapping[str, tuple[tuple[Item, ...], ...]]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read `{"bodies": [...], "answers": {artifact_id: [[{"index", "score"}, ...], ...]}}`."""
        document = json.loads(path.read_bytes())
        return cls(
            bodies=tuple(json.dumps(body, separators=(",", ":")).encode() for body in document["bodies"]),
            answers={
                artifact: tuple(_items(answer) for answer in answers)
                for artifact, answers in document["answers"].items()
            },
        )

    def problem(self, artifact: str, position: int, content: bytes) -> str | None:
        """Say what is wrong with an answer to body `position` in the name of `artifact`, or None."""
        if artifact not in self.answers:
            return f"artifact {artifact!r} has no expected answers"
        try:
            given = _items(json.loads(content)["items"])
        except (ValueError, KeyError, TypeError):
            return f"unreadable answer {content[:100]!r}"
        expected = self.answers[artifact][position]
        if _agree(expected, given):
            return None
        return f"{artifact} should answer {_written(expected)}, got {_written(given)}"


def _items(answer: Sequence[Mapping[str, Any]]) -> tuple[Item, ...]:
    return tuple(Item(int(item["index"]), float(item["score"])) for item in answer)


def _agree(expected: Sequence[Item], given: Sequence[Item]) -> bool:
    return len(expected) == len(given) and all(
        wanted.candidate == got.candidate
        and math.isclose(wanted.score, got.score, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        for wanted, got in zip(expected, given, strict=True)
    )


def _written(items: Sequence[Item]) -> str:
    return " ".join(f"{item.candidate}:{item.score:.4f}" for item in items)


class LatencyHistogram:
    """Durations in seconds, counted in buckets that grow by 5 %: bounded memory, whatever comes."""

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.buckets[max(0, math.ceil(math.log(max(seconds, _SHORTEST) / _SHORTEST) / _GROWTH))] += 1

    def quantile(self, fraction: float) -> float | None:
        """Return the upper edge of the bucket that holds the quantile, or None without any sample."""
        wanted = fraction * self.buckets.total()
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return _SHORTEST * math.exp(bucket * _GROWTH)
        return None


@dataclass
class ArmTally:
    """Answers and latencies of one artifact or one revision."""

    requests: int = 0
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)

    def add(self, seconds: float) -> None:
        """Count one answer."""
        self.requests += 1
        self.latency.add(seconds)

    def figures(self) -> dict[str, float]:
        """Return the count, and the median and 99th percentile in milliseconds."""
        quantiles = {"p50_ms": self.latency.quantile(0.5), "p99_ms": self.latency.quantile(0.99)}
        return {"requests": self.requests} | {
            name: round(value * 1000, 2) for name, value in quantiles.items() if value is not None
        }


@dataclass
class Tally:
    """All figures of a run. A request is exactly one of good, failed and misrouted.

    A revision belongs to one artifact and one cohort, so `revisions` tells the cohorts apart.
    """

    requests: int = 0
    failed: int = 0
    misrouted: int = 0
    artifacts: dict[str, ArmTally] = field(default_factory=dict)
    revisions: dict[str, ArmTally] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def good(self, artifact: str, revision: str, seconds: float) -> None:
        """Count an answer that is what the artifact it names should say."""
        self.requests += 1
        self.artifacts.setdefault(artifact, ArmTally()).add(seconds)
        self.revisions.setdefault(revision, ArmTally()).add(seconds)

    def fail(self, detail: str) -> None:
        """Count a request without a usable answer."""
        self.requests += 1
        self.failed += 1
        self._keep(f"failed: {detail}")

    def misroute(self, detail: str) -> None:
        """Count an answer that the model named in it does not give, or that it may not give yet."""
        self.requests += 1
        self.misrouted += 1
        self._keep(f"misrouted: {detail}")

    def _keep(self, line: str) -> None:
        if len(self.failures) < KEPT_FAILURES:
            self.failures.append(line)

    def figures(self) -> dict[str, Any]:
        """Return everything as one JSON object."""
        return {
            "requests": self.requests,
            "failed": self.failed,
            "misrouted": self.misrouted,
            "artifacts": {name: arm.figures() for name, arm in sorted(self.artifacts.items())},
            "revisions": {name: arm.figures() for name, arm in sorted(self.revisions.items())},
            "failures": self.failures,
        }

"""The PromQL that fetches raw samples, and the reading of Prometheus' answers. Pure."""

from typing import Any

from weightshift.analysis.counters import Series
from weightshift.contracts.identity import Service

REQUESTS = "weightshift_requests_total"
DURATIONS = "weightshift_request_duration_seconds_bucket"


def range_selector(metric: str, service: Service, revisions: tuple[int, ...], seconds: float) -> str:
    """Select the raw samples of the last `seconds` for these revisions of a service."""
    wanted = "|".join(str(revision) for revision in revisions)
    return (
        f'{metric}{{model="{service.model}",environment="{service.environment}",'
        f'revision=~"{wanted}"}}[{max(1, round(seconds * 1000))}ms]'
    )


def read_matrix(answer: list[dict[str, Any]]) -> tuple[Series, ...]:
    """Read a range vector as Prometheus returns it: metric labels and [time, "value"] pairs.

    Raises ValueError when the answer is not a range vector.
    """
    try:
        return tuple(
            Series(
                labels=dict(item["metric"]),
                samples=tuple((float(at), float(value)) for at, value in item["values"]),
            )
            for item in answer
        )
    except (KeyError, TypeError) as error:
        raise ValueError("Prometheus did not answer with a range vector") from error

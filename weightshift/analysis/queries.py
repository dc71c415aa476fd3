"""The PromQL that fetches raw samples, and the reading of Prometheus' answers. Pure."""

import re
from collections.abc import Sequence
from string import Template
from typing import Any

from weightshift.analysis.series import Series
from weightshift.contracts.identity import Cohort, Service

REQUESTS = "weightshift_requests_total"
DURATIONS = "weightshift_request_duration_seconds_bucket"
BUSY_SECONDS = "weightshift_request_duration_seconds_sum"
SCORES = "weightshift_prediction_score_bucket"
REJECTED = "weightshift_rejected_requests_total"
MEMORY = "weightshift_device_memory_used_ratio"

_COUNTER = re.compile(r"\s*([A-Za-z_:][A-Za-z0-9_:]*)\s*\{")


def range_selector(
    metric: str,
    service: Service,
    revisions: Sequence[int],
    seconds: float,
    *,
    edges: Sequence[float] | None = None,
    step: float | None = None,
) -> str:
    """Select the raw samples of the last `seconds` for these revisions of a service.

    Without revisions, of all its instances; with `edges`, only these buckets of a histogram; with a `step`
    in seconds, only the newest sample at every multiple of it.
    """
    labels = [f'model="{service.model}"', f'environment="{service.environment}"']
    if revisions:
        labels.append(f'revision=~"{"|".join(str(revision) for revision in revisions)}"')
    if edges is not None:
        # A whole number of seconds is written with and without its decimal point.
        written = {text for edge in edges for text in (repr(edge), f"{edge:g}")}
        labels.append(f'le=~"{"|".join([*sorted(written), "[+]Inf"])}"')
    return f"{metric}{{{','.join(labels)}}}{_range(seconds, step)}"


def business_selector(template: str, service: Service, cohort: Cohort, revision: int, seconds: float) -> str:
    """Fill a gate's own selector with what is measured, over the last `seconds`."""
    filled = Template(template).substitute(
        model=service.model, environment=service.environment, cohort=cohort.value, revision=revision
    )
    return filled + _range(seconds)


def counter_selector(template: str) -> str | None:
    """Ask whether the counter that a gate's own selector begins with is known now, whatever its labels.

    One series answers, however many there are. None for a selector that begins with no name.
    """
    name = _COUNTER.match(template)
    return None if name is None else f"group({name[1]}){_range(2, 1)}"


def _range(seconds: float, step: float | None = None) -> str:
    every = "" if step is None else f":{max(1, round(step * 1000))}ms"
    return f"[{max(1, round(seconds * 1000))}ms{every}]"


def read_matrix(answer: list[dict[str, Any]]) -> tuple[Series, ...]:
    """Read a range vector as Prometheus returns it: metric labels and [time, "value"] pairs.

    Raises ValueError when the answer is not a range vector.
    """
    try:
        return tuple(
            Series(
                labels=_labels(item["metric"]),
                samples=tuple([(float(at), float(value)) for at, value in item["values"]]),
            )
            for item in answer
        )
    except (KeyError, TypeError) as error:
        raise ValueError("Prometheus did not answer with a range vector") from error


def _labels(metric: Any) -> dict[str, str]:
    if not isinstance(metric, dict):
        raise TypeError
    return metric

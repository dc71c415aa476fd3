"""Both cohorts' error rate and p99 over a whole release, as Prometheus has them."""

import asyncio
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from weightshift.contracts.identity import Cohort, Service
from weightshift.errors import MetricsUnreachable
from weightshift.prometheus_answers import raise_for_error
from weightshift.report.document import Measured, MeasuredArm
from weightshift.settings import MetricsSettings

POINTS = 240
_RATE_SCRAPES = 4
_ERROR_RATE = (
    "sum by (cohort) (rate(weightshift_requests_total{{{labels},code=~'5..'}}[{window}]))"
    " / sum by (cohort) (rate(weightshift_requests_total{{{labels}}}[{window}]))"
)
_P99 = (
    "histogram_quantile(0.99, sum by (cohort, le)"
    " (rate(weightshift_request_duration_seconds_bucket{{{labels}}}[{window}])))"
)
_INSTANCES = "count(count by (instance) (weightshift_requests_total))"


class PrometheusHistory:
    """Reads a release's history for a picture; no verdict rests on it. The client blocks: threads ask."""

    def __init__(self, *, settings: MetricsSettings) -> None:
        self._settings = settings
        session = requests.Session()
        session.hooks["response"].append(raise_for_error)
        self._client = PrometheusConnect(url=settings.prometheus_url, retry=Retry(total=0), session=session)

    async def read(self, service: Service, start: datetime, end: datetime) -> Measured:
        """Return at most `POINTS` moments between two times.

        Raises `MetricsUnreachable`, `QueryRefused`.
        """
        step = max(self._settings.scrape_interval, (end - start).total_seconds() / POINTS)
        window = f"{math.ceil(max(step, _RATE_SCRAPES * self._settings.scrape_interval))}s"
        labels = f'model="{service.model}",environment="{service.environment}"'
        errors, latencies = await asyncio.gather(
            *(
                asyncio.to_thread(self._query, query.format(labels=labels, window=window), start, end, step)
                for query in (_ERROR_RATE, _P99)
            )
        )
        moments = sorted({at for series in (errors, latencies) for arm in series.values() for at in arm})
        return Measured(
            at=tuple(moments),
            **{
                cohort.value: MeasuredArm(
                    error_rate=_column(errors.get(cohort, {}), moments),
                    p99=_column(latencies.get(cohort, {}), moments),
                )
                for cohort in Cohort
            },
        )

    async def scraped_instances(self) -> int:
        """Return how many runtimes Prometheus has fresh samples of.

        Raises `MetricsUnreachable`, `QueryRefused`.
        """
        return await asyncio.to_thread(self._scraped_instances)

    def _scraped_instances(self) -> int:
        try:
            answer: list[dict[str, Any]] = self._client.custom_query(
                _INSTANCES, timeout=self._settings.timeout
            )
            return int(answer[0]["value"][1]) if answer else 0
        except (requests.RequestException, PrometheusApiClientException) as error:
            raise MetricsUnreachable(f"Prometheus did not answer: {type(error).__name__}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise MetricsUnreachable("Prometheus' answer is not readable") from error

    def _query(
        self, query: str, start: datetime, end: datetime, step: float
    ) -> dict[str, dict[float, float]]:
        """Return finite samples by cohort and time."""
        try:
            answer: list[dict[str, Any]] = self._client.custom_query_range(
                query,
                start_time=start,
                end_time=end,
                step=f"{step:.3f}",
                params={"timeout": f"{self._settings.timeout:g}s"},
                timeout=self._settings.timeout,
            )
            return {str(series["metric"].get("cohort")): _finite(series["values"]) for series in answer}
        except (requests.RequestException, PrometheusApiClientException) as error:
            raise MetricsUnreachable(f"Prometheus did not answer: {type(error).__name__}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise MetricsUnreachable("Prometheus' answer is not readable") from error


def _finite(values: Sequence[Sequence[Any]]) -> dict[float, float]:
    samples = {float(at): float(value) for at, value in values}
    return {at: value for at, value in samples.items() if math.isfinite(value)}


def _column(samples: dict[float, float], moments: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(samples.get(moment) for moment in moments)

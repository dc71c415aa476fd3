"""Reads raw samples from Prometheus through prometheus-api-client."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from weightshift.analysis.queries import read_matrix
from weightshift.analysis.series import Series
from weightshift.errors import MetricsUnreachable
from weightshift.prometheus_answers import raise_for_error
from weightshift.settings import MetricsSettings

_QUERIES_AT_A_TIME = 10  # for as many the client keeps connections
_PATIENCE = 2
"""How many times the time-out of a query the answer is waited for, and the turn before it."""


class PrometheusReader:
    """A `MetricsReader` on Prometheus' HTTP API.

    The client blocks, so queries run in threads: of their own, since all else that needs one, a look-up of
    the mesh's address among it, must not wait for a store that hangs.
    """

    def __init__(self, *, settings: MetricsSettings) -> None:
        self.scrape_interval = settings.scrape_interval
        self.calibration = settings.calibration
        self.mesh_errors = settings.mesh_errors
        self._timeout = settings.timeout
        self._threads = ThreadPoolExecutor(_QUERIES_AT_A_TIME, thread_name_prefix="prometheus")
        session = requests.Session()
        session.hooks["response"] += [raise_for_error, _read_quickly]
        self._client = PrometheusConnect(url=settings.prometheus_url, retry=Retry(total=0), session=session)

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        """Return the samples that a range selector finds up to `end` (unix seconds).

        Raises `MetricsUnreachable`, `QueryRefused`.
        """
        loop = asyncio.get_running_loop()
        try:
            # Behind queries that hang it would wait for their time-outs, one after the other.
            async with asyncio.timeout(_PATIENCE * self._timeout):
                return await loop.run_in_executor(
                    self._threads, lambda: read_matrix(self._query(selector, end))
                )
        except TimeoutError as error:
            raise MetricsUnreachable("Prometheus did not answer in time") from error

    def _query(self, query: str, at: float) -> list[dict[str, Any]]:
        try:
            answer: list[dict[str, Any]] = self._client.custom_query(
                query, params={"time": f"{at:.3f}"}, timeout=self._timeout
            )
        except (requests.RequestException, PrometheusApiClientException, KeyError, TypeError) as error:
            raise MetricsUnreachable(f"Prometheus did not answer: {type(error).__name__}") from error
        return answer


class _Answer(requests.Response):
    """An answer whose JSON is read several times faster than by the client's own parser."""

    def json(self, **_: object) -> Any:
        try:
            return orjson.loads(self.content)
        except orjson.JSONDecodeError as error:
            raise requests.exceptions.InvalidJSONError(str(error), response=self) from error


def _read_quickly(response: requests.Response, *_: object, **__: object) -> None:
    response.__class__ = _Answer

"""The mesh adapter for file-driven Envoys: a client of their mesh agents."""

import asyncio
from collections.abc import Sequence

import httpx
from pydantic import SecretStr, ValidationError

from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import MeshUnreachable, StaleFence, WeightshiftError
from weightshift.mesh.wire import ERROR_OF, Failure, SplitCommand


class EnvoyMesh:
    """Writes to every agent, and is done when every Envoy shows the split.

    `timeout` and `confirm_timeout` in seconds: how long an agent may take to answer, and how long
    it may wait for its Envoy. Close it with `aclose`.
    """

    def __init__(
        self, *, agent_urls: Sequence[str], token: SecretStr, timeout: float, confirm_timeout: float
    ) -> None:
        self._agent_urls = tuple(url.rstrip("/") for url in agent_urls)
        self._confirm_timeout = confirm_timeout
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {token.get_secret_value()}"},
            timeout=httpx.Timeout(timeout, read=timeout + confirm_timeout),
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close the connections to the agents."""
        await self._client.aclose()

    async def read(self, service: Service) -> MeshState:
        """Return what every Envoy does now.

        Raises `MeshUnreachable`, also when the Envoys differ; `UnknownService`.
        """
        states = await self._ask_all("GET", service, None)
        if any(state != states[0] for state in states):
            raise MeshUnreachable(f"the Envoys of {service} show different splits; write the split again")
        return states[0]

    async def write(self, service: Service, split: TrafficSplit, fence: Fence) -> MeshState:
        """Set the split everywhere and return the read-back.

        Raises `StaleFence`, `MeshConfirmationTimeout`, `MeshUnreachable`, `UnknownService`.
        """
        command = SplitCommand(split=split, fence=fence, confirm_timeout=self._confirm_timeout)
        states = await self._ask_all("PUT", service, command.model_dump_json())
        return states[0]

    async def _ask_all(self, method: str, service: Service, body: str | None) -> list[MeshState]:
        answers = await asyncio.gather(
            *(self._ask(method, url, service, body) for url in self._agent_urls), return_exceptions=True
        )
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors:
            # A stale command must end as one, whatever else went wrong: it is never to be repeated.
            raise next((error for error in errors if isinstance(error, StaleFence)), errors[0])
        return [answer for answer in answers if isinstance(answer, MeshState)]

    async def _ask(self, method: str, agent_url: str, service: Service, body: str | None) -> MeshState:
        url = f"{agent_url}/v1/split/{service.environment}/{service.model}"
        try:
            response = await self._client.request(method, url, content=body)
            if response.is_success:
                return MeshState.model_validate_json(response.content)
        except (httpx.HTTPError, ValidationError) as error:
            raise MeshUnreachable(
                f"the mesh agent at {agent_url} does not answer ({type(error).__name__}); check that it runs"
            ) from error
        raise _error_of(response, agent_url)


def _error_of(response: httpx.Response, agent_url: str) -> WeightshiftError:
    try:
        failure = Failure.model_validate_json(response.content)
        return ERROR_OF[failure.type](failure.message)
    except (ValidationError, KeyError):
        return MeshUnreachable(f"{agent_url} answered {response.status_code}; check that it is a mesh agent")

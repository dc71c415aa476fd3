"""The mesh adapter for file-driven Envoys: a client of their mesh agents."""

import asyncio
from collections.abc import Sequence

import httpx
from pydantic import SecretStr, ValidationError

from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import MeshUnreachable, StaleFence, WeightshiftError
from weightshift.mesh.wire import ERROR_OF, KEPT_CONNECTIONS, Confirmation, Failure, SplitCommand


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
            limits=KEPT_CONNECTIONS,
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close the connections to the agents."""
        await self._client.aclose()

    async def read(self, service: Service) -> MeshState:
        """Return what every Envoy does now.

        Raises `MeshUnreachable`, also when the Envoys differ; `UnknownService`.
        """
        states = await self._ask_all("GET", service)
        if any(state != states[0] for state in states):
            raise MeshUnreachable(f"the Envoys of {service} show different splits; write the split again")
        return states[0]

    async def check(self, service: Service, splits: Sequence[TrafficSplit]) -> None:
        """See that every agent and its Envoy answers for this service: they can do any split.

        Raises `MeshUnreachable`, `UnknownService`.
        """
        await self._ask_all("GET", service)

    async def write(
        self, service: Service, split: TrafficSplit, fence: Fence, *, expected: MeshState | None = None
    ) -> MeshState:
        """Have every agent accept the split, and return it.

        Raises `StaleFence`, `MeshDrift`, `MeshUnreachable`, `UnknownService`.
        """
        command = SplitCommand(split=split, fence=fence, expected=expected)
        return (await self._ask_all("PUT", service, body=command.model_dump_json()))[0]

    async def confirm(self, service: Service, state: MeshState) -> None:
        """Return when every Envoy's own dump shows the state.

        Raises `StaleFence`, `MeshConfirmationTimeout`, `MeshUnreachable`.
        """
        confirmation = Confirmation(state=state, timeout=self._confirm_timeout)
        await self._ask_all("POST", service, action="/confirm", body=confirmation.model_dump_json())

    async def finalise(self, service: Service, fence: Fence) -> None:
        """Nothing to take away: the route file holds the split and its fence alone."""

    async def _ask_all(
        self, method: str, service: Service, *, action: str = "", body: str | None = None
    ) -> list[MeshState]:
        path = f"/v1/split/{service.environment}/{service.model}{action}"
        answers = await asyncio.gather(
            *(self._ask(method, url, path, body) for url in self._agent_urls), return_exceptions=True
        )
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors:
            # A stale command must end as one, whatever else went wrong: it is never to be repeated.
            raise next((error for error in errors if isinstance(error, StaleFence)), errors[0])
        return [answer for answer in answers if isinstance(answer, MeshState)]

    async def _ask(self, method: str, agent_url: str, path: str, body: str | None) -> MeshState:
        try:
            response = await self._client.request(method, f"{agent_url}{path}", content=body)
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

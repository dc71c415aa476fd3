"""The mesh agent: the only writer of one Envoy's route file (`python -m weightshift.mesh.envoy_agent`)."""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import uvicorn
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from weightshift.contracts.base import Name, describe_problems
from weightshift.contracts.identity import Service
from weightshift.contracts.traffic import MeshState
from weightshift.errors import (
    InvalidInput,
    MeshConfirmationTimeout,
    MeshUnreachable,
    Unauthorised,
    UnknownService,
    WeightshiftError,
)
from weightshift.mesh.envoy_config import parse_config_dump
from weightshift.mesh.fencing import require_confirmed
from weightshift.mesh.route_file import RouteFile
from weightshift.mesh.wire import (
    AGENT_KEEP_ALIVE_SECONDS,
    KEPT_CONNECTIONS,
    STATUS_OF,
    Confirmation,
    Failure,
    SplitCommand,
)
from weightshift.processor_turns import take_turns_of

Body = TypeVar("Body", SplitCommand, Confirmation)

_MAX_BODY_BYTES = 4_096
_POLL_INTERVAL = 0.002
# Others are at work on its machine, and a rollback must not wait for the end of their turns.
_PROCESSOR_TURN_SECONDS = 0.0005
_ROUTE_DUMP = "/config_dump?resource=dynamic_route_configs"


class AgentSettings(BaseSettings):
    """What a mesh agent serves: one service on one Envoy. Timeouts in seconds."""

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_MESH_AGENT_")

    host: str = "127.0.0.1"
    port: int = 8090
    token: SecretStr = Field(min_length=16)
    model: Name
    environment: Name
    route_file: Path
    envoy_admin_url: str = "http://127.0.0.1:9901"
    envoy_timeout: float = Field(default=1.0, gt=0)


class Agent:
    """Accepts commands into the route file, and reads back from Envoy's admin port what it does."""

    def __init__(self, *, service: Service, route_file: RouteFile, envoy: httpx.AsyncClient) -> None:
        self.service = service
        self._route_file = route_file
        self._envoy = envoy

    async def read(self) -> MeshState:
        """Return the split Envoy uses. Raises `MeshUnreachable`."""
        try:
            response = await self._envoy.get(_ROUTE_DUMP)
            response.raise_for_status()
            content = response.json()
        except (httpx.HTTPError, json.JSONDecodeError) as error:
            reason = type(error).__name__
            raise MeshUnreachable(
                f"Envoy's admin port does not answer ({reason}); check that it runs"
            ) from error
        return parse_config_dump(content)

    async def write(self, command: SplitCommand) -> MeshState:
        """Accept a command into the route file. Raises `StaleFence`, `MeshDrift`."""
        await asyncio.to_thread(self._route_file.accept, command.state, expected=command.expected)
        return command.state

    async def confirm(self, confirmation: Confirmation) -> MeshState:
        """Wait until Envoy shows a state.

        Raises `StaleFence` when it shows a newer one, and `MeshConfirmationTimeout`.
        """
        state, reason = confirmation.state, "it shows an older one"
        try:
            async with asyncio.timeout(confirmation.timeout):
                while True:
                    try:
                        if require_confirmed(await self.read(), state):
                            return state
                    except MeshUnreachable as error:
                        reason = str(error)
                    await asyncio.sleep(_POLL_INTERVAL)
        except TimeoutError:
            raise MeshConfirmationTimeout(
                f"Envoy does not show {state} after {confirmation.timeout:g} s: {reason}"
            ) from None


def create_app(settings: AgentSettings) -> Starlette:
    """Build the HTTP service: `/v1/split/{environment}/{model}`, its `confirm`, and `/healthz`."""
    service = Service(model=settings.model, environment=settings.environment)
    route_file = RouteFile(path=settings.route_file)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        client = httpx.AsyncClient(
            base_url=settings.envoy_admin_url,
            timeout=settings.envoy_timeout,
            limits=KEPT_CONNECTIONS,
            trust_env=False,
        )
        with route_file:
            async with client:
                app.state.agent = Agent(service=service, route_file=route_file, envoy=client)
                yield

    async def split(request: Request) -> Response:
        _require_token(request, settings.token)
        agent = _agent_for(request)
        if request.method == "PUT":
            return _answer(await agent.write(await _body(request, SplitCommand)))
        return _answer(await agent.read())

    async def confirm(request: Request) -> Response:
        _require_token(request, settings.token)
        return _answer(await _agent_for(request).confirm(await _body(request, Confirmation)))

    return Starlette(
        routes=[
            Route("/v1/split/{environment}/{model}", split, methods=["GET", "PUT"]),
            Route("/v1/split/{environment}/{model}/confirm", confirm, methods=["POST"]),
            Route("/healthz", lambda _: PlainTextResponse("ok")),
        ],
        exception_handlers={WeightshiftError: _failure},
        lifespan=lifespan,
    )


def _require_token(request: Request, token: SecretStr) -> None:
    given = request.headers.get("authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {token.get_secret_value()}".encode()):
        raise Unauthorised("authorization: the bearer token is missing or wrong; use the mesh agent's token")


def _agent_for(request: Request) -> Agent:
    agent: Agent = request.app.state.agent
    named = (request.path_params["environment"], request.path_params["model"])
    if named != (agent.service.environment, agent.service.model):
        raise UnknownService(
            f"this Envoy serves {agent.service}, not {'/'.join(named)}; use another mesh agent"
        )
    return agent


async def _body(request: Request, kind: type[Body]) -> Body:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise InvalidInput(f"body: longer than {_MAX_BODY_BYTES} bytes; send one {kind.__name__}")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise InvalidInput(f"{describe_problems(error)}; correct the {kind.__name__}") from error


def _answer(state: MeshState) -> Response:
    return Response(state.model_dump_json(), media_type="application/json")


async def _failure(_: Request, error: Exception) -> Response:
    status = STATUS_OF.get(type(error), 500) if isinstance(error, WeightshiftError) else 500
    body = Failure(type=type(error).__name__, message=str(error)).model_dump_json()
    return Response(body, status_code=status, media_type="application/json")


def main() -> None:
    """Serve until SIGTERM."""
    settings = AgentSettings()
    take_turns_of(_PROCESSOR_TURN_SECONDS)
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        timeout_keep_alive=AGENT_KEEP_ALIVE_SECONDS,
        log_level="warning",
    )


if __name__ == "__main__":
    main()

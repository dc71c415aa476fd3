"""The registry's HTTP routes: parse, check the grant, call the registry, answer."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from weightshift.contracts.base import Document, Name, describe_problems
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.errors import InvalidInput, Unauthorised, UnknownService
from weightshift.registry.base import Registry
from weightshift.registry.tokens import Grant, Role
from weightshift.registry.watch import TargetBell, await_target

MAX_WAIT_SECONDS = 30.0
BODY_SECONDS = 10.0

_NAME: TypeAdapter[str] = TypeAdapter(Name)
_COHORT = TypeAdapter(Cohort)
_Parsed = TypeVar("_Parsed")
_Handler = Callable[[Request], Awaitable[Response]]


class _Rejection(Document):
    reason: str = Field(min_length=1, max_length=1_000)


@dataclass(frozen=True, kw_only=True)
class Routes:
    """Every route of the service, over one registry. `lost_after`: silence that makes an instance lost."""

    registry: Registry
    bell: TargetBell
    lost_after: timedelta

    def all(self) -> list[Route]:
        """Return the routes; each names the roles that may use it."""
        both, operator, runtime = tuple(Role), (Role.OPERATOR,), (Role.RUNTIME,)
        service = "{environment}/{model}"
        return [
            Route("/healthz", _health, methods=["GET"]),
            _route("GET", f"/v1/targets/{service}", self._targets, both),
            _route("GET", f"/v1/targets/{service}/{{cohort}}", self._target, both),
            _route("GET", f"/v1/instances/{service}", self._instances, operator),
            _route("PUT", "/v1/instances/{instance_id}", self._report, runtime),
            _route("POST", "/v1/artifacts", self._register, operator),
            _route("GET", "/v1/artifacts/{model}", self._artifacts, both),
            _route("GET", "/v1/artifacts/{model}/{artifact_id}", self._artifact, both),
            _route("POST", "/v1/artifacts/{model}/{artifact_id}/approve", self._approve, operator),
            _route("POST", "/v1/artifacts/{model}/{artifact_id}/reject", self._reject, operator),
            _route("GET", f"/v1/releases/{service}", self._releases, operator),
            _route("GET", f"/v1/audit/{service}", self._audit, operator),
        ]

    async def _targets(self, request: Request) -> Response:
        return _answer(await self.registry.targets(_service(request)))

    async def _target(self, request: Request) -> Response:
        service = _service(request)
        cohort = _parse(_COHORT, request.path_params["cohort"], "cohort")
        known, wait = _known_revision(request), _wait(request)
        target = await await_target(
            self.registry,
            self.bell,
            service,
            cohort,
            known=-1 if known is None else known,
            wait=0.0 if known is None else wait,
        )
        revision = target.revision if target else 0
        if revision == known:
            return Response(status_code=304, headers={"etag": f'"{revision}"'})
        if target is None:
            raise UnknownService(f"Nothing is published for {service} {cohort}; start a release.")
        return _answer(target, headers={"etag": f'"{revision}"'})

    async def _report(self, request: Request) -> Response:
        report = InstanceReport.model_validate_json(await _body(request))
        _grant(request).check(model=report.service.model, environment=report.service.environment)
        if report.instance_id != request.path_params["instance_id"]:
            raise InvalidInput("instance_id of the path and of the report differ; send the report's own.")
        await self.registry.report(report)
        return Response(status_code=204)

    async def _instances(self, request: Request) -> Response:
        states = await self.registry.instances(_service(request), lost_after=self.lost_after)
        return _answer_list("instances", states)

    async def _register(self, request: Request) -> Response:
        record = ArtifactRecord.model_validate_json(await _body(request))
        grant = _grant(request)
        grant.check(model=record.model)
        return _answer(await self.registry.register_artifact(record, operator=grant.subject))

    async def _approve(self, request: Request) -> Response:
        grant = _grant(request)
        grant.check_every_environment()
        model, artifact_id = _artifact_key(request)
        return _answer(await self.registry.approve_artifact(model, artifact_id, operator=grant.subject))

    async def _reject(self, request: Request) -> Response:
        grant = _grant(request)
        grant.check_every_environment()
        model, artifact_id = _artifact_key(request)
        rejection = _Rejection.model_validate_json(await _body(request))
        record = await self.registry.reject_artifact(
            model, artifact_id, operator=grant.subject, reason=rejection.reason
        )
        return _answer(record)

    async def _artifact(self, request: Request) -> Response:
        return _answer(await self.registry.artifact(*_artifact_key(request)))

    async def _artifacts(self, request: Request) -> Response:
        model = _parse(_NAME, request.path_params["model"], "model")
        return _answer_list("artifacts", await self.registry.artifacts(model))

    async def _releases(self, request: Request) -> Response:
        return _answer_list("releases", await self.registry.releases(_service(request)))

    async def _audit(self, request: Request) -> Response:
        release_id = request.query_params.get("release")
        return _answer_list("rows", await self.registry.audit(_service(request), release_id=release_id))


async def _health(_: Request) -> Response:
    return Response(b'{"status":"ok"}', media_type="application/json")


def _route(method: str, path: str, handler: _Handler, roles: tuple[Role, ...]) -> Route:
    async def checked(request: Request) -> Response:
        grant = _grant(request)
        if grant.role not in roles:
            raise Unauthorised(f"A token of role {grant.role} does not allow this; use another role's.")
        grant.check(
            model=request.path_params.get("model"), environment=request.path_params.get("environment")
        )
        try:
            return await handler(request)
        except ValidationError as error:
            raise InvalidInput(f"The request is invalid: {describe_problems(error)}.") from error

    return Route(path, checked, methods=[method])


def _grant(request: Request) -> Grant:
    grant: Grant = request.state.grant
    return grant


def _service(request: Request) -> Service:
    return Service(model=request.path_params["model"], environment=request.path_params["environment"])


def _artifact_key(request: Request) -> tuple[str, str]:
    parameters = request.path_params
    return _parse(_NAME, parameters["model"], "model"), _parse(
        _NAME, parameters["artifact_id"], "artifact_id"
    )


def _parse(adapter: TypeAdapter[_Parsed], value: object, field: str) -> _Parsed:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise InvalidInput(f"{field} is invalid: {describe_problems(error)}.") from error


def _known_revision(request: Request) -> int | None:
    tag = request.headers.get("if-none-match")
    if tag is None:
        return None
    digits = tag.strip().strip('"')
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidInput('If-None-Match is not a quoted revision; send for example "42".')
    return int(digits)


def _wait(request: Request) -> float:
    try:
        wait = float(request.query_params.get("wait", "0"))
    except ValueError:
        wait = math.nan
    if not 0 <= wait <= MAX_WAIT_SECONDS:
        raise InvalidInput(
            f"wait is not a number of seconds from 0 to {MAX_WAIT_SECONDS:g}; send one that is."
        )
    return wait


async def _body(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.body()
    except TimeoutError as error:
        raise InvalidInput("The body did not arrive in time; send it again.") from error


def _answer(model: BaseModel, *, headers: dict[str, str] | None = None) -> Response:
    return Response(model.model_dump_json(), media_type="application/json", headers=headers)


def _answer_list(name: str, items: Iterable[BaseModel]) -> Response:
    content: dict[str, Any] = {name: [item.model_dump(mode="json") for item in items]}
    return Response(orjson.dumps(content), media_type="application/json")

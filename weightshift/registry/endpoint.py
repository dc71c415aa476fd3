"""One route of the HTTP service: who may use it, what it takes, and what it answers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from weightshift.contracts.base import Name, describe_problems
from weightshift.contracts.identity import Cohort, Service
from weightshift.errors import InvalidInput, Unauthorised
from weightshift.registry.tokens import Grant, Role

BODY_SECONDS = 10.0

SERVICE_PATH = "{environment}/{model}"
"""How paths name a service."""

_NAME: TypeAdapter[str] = TypeAdapter(Name)
_COHORT = TypeAdapter(Cohort)
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One checked request. `query` and `body` are of the types that the endpoint declares."""

    request: Request
    grant: Grant
    path: dict[str, str]
    query: Any
    body: Any

    @property
    def service(self) -> Service:
        """The service that the path names."""
        return Service(model=self.path["model"], environment=self.path["environment"])


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A route. Whatever it does not declare is refused before `handle` is called."""

    method: str
    path: str
    summary: str
    roles: tuple[Role, ...]
    handle: Callable[[Call], Awaitable[Response]] = field(repr=False)
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None

    def route(self) -> Route:
        """Return the route for the application."""
        return Route(self.path, self._answer, methods=[self.method])

    async def _answer(self, request: Request) -> Response:
        grant: Grant = request.state.grant
        if grant.role not in self.roles:
            raise Unauthorised(f"A token of role {grant.role} does not allow this; use another role's.")
        parameters = request.path_params
        grant.check(model=parameters.get("model"), environment=parameters.get("environment"))
        path = {name: _parameter(name, value) for name, value in parameters.items()}
        query = body = None
        if self.query is not None:
            query = _parse(partial(self.query.model_validate, dict(request.query_params)), "The query string")
        if self.body is not None:
            body = _parse(partial(self.body.model_validate_json, await _body(request)), "The body")
        return await self.handle(Call(request=request, grant=grant, path=path, query=query, body=body))


def answer(model: BaseModel, *, headers: dict[str, str] | None = None) -> Response:
    """Return a message as the response."""
    return Response(model.model_dump_json(), media_type="application/json", headers=headers)


def _parameter(name: str, value: str) -> str:
    validate: Callable[[str], str] = (_COHORT if name == "cohort" else _NAME).validate_python
    return _parse(partial(validate, value), name)


def _parse(validate: Callable[[], _Parsed], what: str) -> _Parsed:
    try:
        return validate()
    except ValidationError as error:
        raise InvalidInput(f"{what} is invalid: {describe_problems(error)}.") from error


async def _body(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.body()
    except TimeoutError as error:
        raise InvalidInput("The body did not arrive in time; send it again.") from error

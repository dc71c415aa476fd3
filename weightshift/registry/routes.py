"""Every route of the registry's HTTP service, its description, and what Prometheus reads."""

from dataclasses import dataclass
from datetime import timedelta

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from weightshift.registry.answers import Identity
from weightshift.registry.artifact_routes import ArtifactRoutes
from weightshift.registry.base import Registry
from weightshift.registry.endpoint import Call, Endpoint, answer
from weightshift.registry.exposition import CONTENT_TYPE, render
from weightshift.registry.fleet_routes import FleetRoutes
from weightshift.registry.openapi import describe
from weightshift.registry.record_routes import RecordRoutes
from weightshift.registry.tokens import Role
from weightshift.registry.watch import SharedReads, TargetBell


@dataclass(frozen=True, kw_only=True)
class Routes:
    """The routes over one registry.

    `lost_after` is the silence that makes an instance lost, `mismatch_after` how long one may serve
    something else than what is desired.
    """

    registry: Registry
    bell: TargetBell
    lost_after: timedelta
    mismatch_after: timedelta

    def all(self) -> list[Route]:
        """Return the routes of the application."""
        return [
            Route("/healthz", _health, methods=["GET"]),
            *(endpoint.route() for endpoint in self.endpoints()),
        ]

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return everything that needs a token."""
        fleet = FleetRoutes(
            registry=self.registry,
            bell=self.bell,
            reads=SharedReads(self.registry),
            lost_after=self.lost_after,
        )
        topics = (fleet, ArtifactRoutes(registry=self.registry), RecordRoutes(registry=self.registry))
        return (
            *(endpoint for topic in topics for endpoint in topic.endpoints()),
            Endpoint(
                method="GET",
                path="/v1/identity",
                summary="Whose token this is",
                roles=(Role.OPERATOR,),
                handle=self._identity,
                answer=Identity,
            ),
            Endpoint(
                method="GET",
                path="/metrics",
                summary="Incidents and the fleet's condition, for Prometheus",
                roles=(Role.METRICS, Role.OPERATOR),
                handle=self._metrics,
            ),
            Endpoint(
                method="GET",
                path="/openapi.json",
                summary="This description",
                roles=tuple(Role),
                handle=self._openapi,
            ),
        )

    async def _identity(self, call: Call) -> Response:
        return answer(Identity.model_validate(call.grant.model_dump()))

    async def _metrics(self, call: Call) -> Response:
        call.grant.check_every_model()
        call.grant.check_every_environment()
        health = await self.registry.health(lost_after=self.lost_after, mismatch_after=self.mismatch_after)
        return Response(render(health, waiting=self.bell.waiting), media_type=CONTENT_TYPE)

    async def _openapi(self, _: Call) -> Response:
        return Response(orjson.dumps(describe(self.endpoints())), media_type="application/json")


async def _health(_: Request) -> Response:
    return Response(b'{"status":"ok"}', media_type="application/json")

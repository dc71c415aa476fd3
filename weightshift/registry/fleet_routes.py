"""The routes of targets, wave grants and instances: what runtimes live on."""

from dataclasses import dataclass
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from weightshift.contracts.identity import Cohort
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.target import Target, Targets
from weightshift.errors import InvalidInput, UnknownService
from weightshift.registry.answers import GrantList, InstanceList, Wait
from weightshift.registry.base import Registry
from weightshift.registry.endpoint import SERVICE_PATH, Call, Endpoint, answer
from weightshift.registry.tokens import Role
from weightshift.registry.watch import SharedReads, TargetBell, await_target

_LONGEST_REVISION = 18
_BOTH = (Role.OPERATOR, Role.RUNTIME)


@dataclass(frozen=True, kw_only=True)
class FleetRoutes:
    """Handlers over one registry; `lost_after` is the silence that makes an instance lost."""

    registry: Registry
    bell: TargetBell
    reads: SharedReads
    lost_after: timedelta

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the routes."""
        return (*self._targets(), *self._instances())

    def _targets(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                method="GET",
                path=f"/v1/targets/{SERVICE_PATH}",
                summary="Both cohorts' targets",
                roles=_BOTH,
                handle=self._read_targets,
                answer=Targets,
            ),
            Endpoint(
                method="GET",
                path=f"/v1/targets/{SERVICE_PATH}/{{cohort}}",
                summary='One cohort\'s target. With If-None-Match: the known revision, quoted ("0" for '
                'none), answers as soon as it differs, else 304 after "wait" seconds',
                roles=_BOTH,
                handle=self._read_target,
                query=Wait,
                answer=Target,
            ),
            Endpoint(
                method="GET",
                path=f"/v1/grants/{SERVICE_PATH}",
                summary="The wave grants in force",
                roles=_BOTH,
                handle=self._read_grants,
                answer=GrantList,
            ),
        )

    def _instances(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                method="GET",
                path=f"/v1/instances/{SERVICE_PATH}",
                summary="What instances report, and which of them are lost",
                roles=(Role.OPERATOR,),
                handle=self._read_instances,
                answer=InstanceList,
            ),
            Endpoint(
                method="PUT",
                path="/v1/instances/{instance_id}",
                summary="An instance's report about itself",
                roles=(Role.RUNTIME,),
                handle=self._report,
                body=InstanceReport,
            ),
        )

    async def _read_targets(self, call: Call) -> Response:
        return answer(await self.registry.targets(call.service))

    async def _read_target(self, call: Call) -> Response:
        service, cohort = call.service, Cohort(call.path["cohort"])
        known = _known_revision(call.request)
        target = await await_target(
            self.reads,
            self.bell,
            service,
            cohort,
            known=-1 if known is None else known,
            wait=0.0 if known is None else call.query.wait,
        )
        revision = target.revision if target else 0
        if revision == known:
            return Response(status_code=304, headers={"etag": f'"{revision}"'})
        if target is None:
            raise UnknownService(f"Nothing is published for {service} {cohort}; start a release.")
        return answer(target, headers={"etag": f'"{revision}"'})

    async def _read_grants(self, call: Call) -> Response:
        return answer(GrantList(grants=await self.registry.wave_grants(call.service)))

    async def _read_instances(self, call: Call) -> Response:
        states = await self.registry.instances(call.service, lost_after=self.lost_after)
        return answer(InstanceList(instances=states))

    async def _report(self, call: Call) -> Response:
        report: InstanceReport = call.body
        call.grant.check(model=report.service.model, environment=report.service.environment)
        if report.instance_id != call.path["instance_id"]:
            raise InvalidInput("instance_id of the path and of the report differ; send the report's own.")
        await self.registry.report(report)
        return Response(status_code=204)


def _known_revision(request: Request) -> int | None:
    tag = request.headers.get("if-none-match")
    if tag is None:
        return None
    digits = tag.strip().strip('"')
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_REVISION):
        raise InvalidInput('If-None-Match is not a quoted revision; send for example "42".')
    return int(digits)

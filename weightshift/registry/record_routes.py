"""The routes of what happened and who allowed it: releases, approvals and the audit chains."""

from dataclasses import dataclass

from starlette.responses import Response

from weightshift.contracts.approval import Approval, ApprovalRequest
from weightshift.contracts.evidence import AuditHead, BrokenGlass
from weightshift.registry import rules
from weightshift.registry.answers import AuditFilters, AuditRows, ReleaseApproval, ReleaseList
from weightshift.registry.base import Registry
from weightshift.registry.endpoint import SERVICE_PATH, Call, Endpoint, answer
from weightshift.registry.tokens import Role

_OPERATOR = (Role.OPERATOR,)


@dataclass(frozen=True, kw_only=True)
class RecordRoutes:
    """Handlers over one registry."""

    registry: Registry

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the routes."""
        return (*self._releases(), *self._chains())

    def _releases(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                method="GET",
                path=f"/v1/releases/{SERVICE_PATH}",
                summary="A service's releases, newest first",
                roles=_OPERATOR,
                handle=self._read_releases,
                answer=ReleaseList,
            ),
            Endpoint(
                method="POST",
                path=f"/v1/approvals/{SERVICE_PATH}",
                summary="Approve a release",
                roles=_OPERATOR,
                handle=self._approve_release,
                body=ReleaseApproval,
                answer=Approval,
            ),
            Endpoint(
                method="GET",
                path=f"/v1/approvals/{SERVICE_PATH}/{{approval_id}}",
                summary="One approval of a release",
                roles=_OPERATOR,
                handle=self._read_approval,
                answer=Approval,
            ),
        )

    def _chains(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                method="GET",
                path=f"/v1/audit/{SERVICE_PATH}",
                summary="One page of a service's audit rows",
                roles=_OPERATOR,
                handle=self._read_audit,
                query=AuditFilters,
                answer=AuditRows,
            ),
            Endpoint(
                method="POST",
                path=f"/v1/break-glass/{SERVICE_PATH}",
                summary="Record that traffic was moved past the release",
                roles=_OPERATOR,
                handle=self._record_broken_glass,
                body=BrokenGlass,
            ),
            Endpoint(
                method="GET",
                path="/v1/chains/{environment}",
                summary="One page of an environment's whole audit chain",
                roles=_OPERATOR,
                handle=self._read_chain,
                query=AuditFilters,
                answer=AuditRows,
            ),
            Endpoint(
                method="GET",
                path="/v1/chains/{environment}/head",
                summary="The newest row's place and hash",
                roles=_OPERATOR,
                handle=self._read_head,
                answer=AuditHead,
            ),
        )

    async def _read_releases(self, call: Call) -> Response:
        return answer(ReleaseList(releases=await self.registry.releases(call.service)))

    async def _approve_release(self, call: Call) -> Response:
        request = ApprovalRequest(service=call.service, **call.body.model_dump())
        return answer(await self.registry.approve_release(request, operator=call.grant.subject))

    async def _read_approval(self, call: Call) -> Response:
        approval_id = call.path["approval_id"]
        approval = await self.registry.approval(approval_id)
        is_its = approval.service == call.service
        return answer(rules.known_approval(approval if is_its else None, approval_id))

    async def _read_audit(self, call: Call) -> Response:
        query = call.query.query(call.path["environment"], call.path["model"])
        return answer(AuditRows(rows=await self.registry.audit_page(query)))

    async def _record_broken_glass(self, call: Call) -> Response:
        releases = await self.registry.releases(call.service)
        running = next((release.release_id for release in releases if release.outcome is None), None)
        broken: BrokenGlass = call.body
        await self.registry.record_evidence(
            broken.evidence(call.service, subject=call.grant.subject, release_id=running)
        )
        return Response(status_code=204)

    async def _read_chain(self, call: Call) -> Response:
        call.grant.check_every_model()
        query = call.query.query(call.path["environment"], None)
        return answer(AuditRows(rows=await self.registry.audit_page(query)))

    async def _read_head(self, call: Call) -> Response:
        call.grant.check_every_model()
        return answer(await self.registry.audit_head(call.path["environment"]))

"""The routes of artifacts."""

from dataclasses import dataclass

from starlette.responses import Response

from weightshift.contracts.approval import RejectedArtifact
from weightshift.contracts.manifest import ArtifactRecord, ArtifactState
from weightshift.errors import UnknownArtifact
from weightshift.registry.answers import ArtifactList, Reason, Registration
from weightshift.registry.base import Registry
from weightshift.registry.endpoint import Call, Endpoint, answer
from weightshift.registry.tokens import Role

_OPERATOR, _BOTH = (Role.OPERATOR,), (Role.OPERATOR, Role.RUNTIME)
_ARTIFACT = "/v1/artifacts/{model}/{artifact_id}"


@dataclass(frozen=True, kw_only=True)
class ArtifactRoutes:
    """Handlers over one registry."""

    registry: Registry

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the routes."""
        return (*self._registration(), *self._decisions())

    def _registration(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                method="POST",
                path="/v1/artifacts",
                summary="Register an artifact as pending",
                roles=_OPERATOR,
                handle=self._register,
                body=Registration,
                answer=ArtifactRecord,
            ),
            Endpoint(
                method="GET",
                path="/v1/artifacts/{model}",
                summary="A model's artifacts, newest first",
                roles=_BOTH,
                handle=self._read_artifacts,
                answer=ArtifactList,
            ),
            Endpoint(
                method="GET",
                path=_ARTIFACT,
                summary="One artifact",
                roles=_BOTH,
                handle=self._read_artifact,
                answer=ArtifactRecord,
            ),
        )

    def _decisions(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                method="POST",
                path=f"{_ARTIFACT}/approve",
                summary="Approve an artifact; it is ready once enough people did",
                roles=_OPERATOR,
                handle=self._approve,
                answer=ArtifactRecord,
            ),
            Endpoint(
                method="POST",
                path=f"{_ARTIFACT}/reject",
                summary="Reject an artifact for ever; the answer names where it is in use",
                roles=_OPERATOR,
                handle=self._reject,
                body=Reason,
                answer=RejectedArtifact,
            ),
        )

    async def _register(self, call: Call) -> Response:
        record = call.body.record()
        call.grant.check(model=record.model)
        if await self._replaces_signature(record):
            call.grant.check_every_environment()
        return answer(await self.registry.register_artifact(record, operator=call.grant.subject))

    async def _replaces_signature(self, record: ArtifactRecord) -> bool:
        """Whether it would change what a decided artifact is released with, in every environment."""
        try:
            stored = await self.registry.artifact(record.model, record.artifact_id)
        except UnknownArtifact:
            return False
        is_decided = stored.state is not ArtifactState.PENDING
        return is_decided and record.signature_sha256 not in (None, stored.signature_sha256)

    async def _read_artifacts(self, call: Call) -> Response:
        return answer(ArtifactList(artifacts=await self.registry.artifacts(call.path["model"])))

    async def _read_artifact(self, call: Call) -> Response:
        return answer(await self.registry.artifact(call.path["model"], call.path["artifact_id"]))

    async def _approve(self, call: Call) -> Response:
        call.grant.check_every_environment()
        record = await self.registry.approve_artifact(
            call.path["model"], call.path["artifact_id"], operator=call.grant.subject
        )
        return answer(record)

    async def _reject(self, call: Call) -> Response:
        call.grant.check_every_environment()
        record = await self.registry.reject_artifact(
            call.path["model"],
            call.path["artifact_id"],
            operator=call.grant.subject,
            reason=call.body.reason,
        )
        return answer(record)

"""The registry over HTTP, for everybody who holds no database password: runtimes and the command line."""

import asyncio
import inspect
import re
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from weightshift import errors
from weightshift.contracts.approval import Approval, ApprovalRequest, RejectedArtifact
from weightshift.contracts.base import NAME_PATTERN, clean_text, describe_problems
from weightshift.contracts.evidence import AuditHead, AuditQuery, AuditRow, BrokenGlass
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import ReleaseRecord
from weightshift.contracts.target import Target, Targets
from weightshift.contracts.wave import WaveGrant
from weightshift.errors import InvalidInput, RegistryUnreachable, Unauthorised, WeightshiftError
from weightshift.registry.answers import (
    ArtifactList,
    AuditFilters,
    AuditRows,
    GrantList,
    Identity,
    InstanceList,
    Registration,
    ReleaseList,
)
from weightshift.registry.pages import read_all

_Model = TypeVar("_Model", bound=BaseModel)

MOST_ANSWER_BYTES = 64 << 20
"""More than the largest page of audit rows; what is longer is not the registry's."""

_NAME = re.compile(NAME_PATTERN)
_TOKEN = re.compile(r"[!-~]+")
_ERRORS = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, WeightshiftError)
}


class RegistryClient:
    """One method per route. Errors come back as the class they were raised as.

    Every method raises `RegistryUnreachable` when the registry does not answer within `timeout`
    seconds, and `Unauthorised` when the token does not allow it. `transport` replaces the network.
    """

    def __init__(
        self, *, url: str, token: str, timeout: float = 5.0, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._timeout = timeout
        # No header takes anything else, and no token that was ever issued has it.
        self._has_token = _TOKEN.fullmatch(token) is not None
        self._http = httpx.AsyncClient(
            base_url=_checked_url(url),
            headers={"authorization": f"Bearer {token}"} if self._has_token else {},
            timeout=timeout,
            transport=transport,
            # A proxy from the environment would see the token.
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def identity(self) -> Identity:
        """Read whose token this client has."""
        return _parse(Identity, await self._get("/v1/identity"))

    async def targets(self, service: Service) -> Targets:
        """Read both cohorts' targets."""
        return _parse(Targets, await self._get(f"/v1/targets/{service}"))

    async def target(
        self, service: Service, cohort: Cohort, *, known_revision: int | None = None, wait: float = 0.0
    ) -> Target | None:
        """Read one cohort's target; None when nothing is published, or nothing newer than known.

        With `known_revision` (0: none known) the registry answers as soon as the revision differs, at
        the latest after `wait` seconds (at most 30).
        """
        response = await self._request(
            "GET",
            f"/v1/targets/{service}/{cohort}",
            headers={} if known_revision is None else {"if-none-match": f'"{known_revision}"'},
            params={"wait": str(wait)},
            timeout=self._timeout + wait,
        )
        if response.status_code == httpx.codes.NOT_MODIFIED:
            return None
        try:
            return _parse(Target, _checked(response))
        except errors.UnknownService:
            return None

    async def report(self, report: InstanceReport) -> None:
        """Store what an instance says of itself."""
        content = report.model_dump_json()
        _checked(await self._request("PUT", f"/v1/instances/{report.instance_id}", content=content))

    async def instances(self, service: Service) -> tuple[InstanceState, ...]:
        """Read a service's instances."""
        return _parse(InstanceList, await self._get(f"/v1/instances/{service}")).instances

    async def register_artifact(self, record: ArtifactRecord) -> ArtifactRecord:
        """Register an artifact as pending; a repeat is a no-op. Raises `ArtifactConflict`."""
        body = record.model_dump(mode="json", include=set(Registration.model_fields))
        return await self._post_artifact("/v1/artifacts", body)

    async def approve_artifact(self, model: str, artifact_id: str) -> ArtifactRecord:
        """Approve an artifact, which is ready once enough people did.

        Raises `UnknownArtifact`, `Conflict` for a rejected one.
        """
        return await self._post_artifact(f"{_artifact_path(model, artifact_id)}/approve", {})

    async def reject_artifact(self, model: str, artifact_id: str, reason: str) -> RejectedArtifact:
        """Move an artifact to rejected, for ever; the answer names where it is in use.

        Raises `UnknownArtifact`.
        """
        path = f"{_artifact_path(model, artifact_id)}/reject"
        return _parse(RejectedArtifact, _checked(await self._request("POST", path, json={"reason": reason})))

    async def artifact(self, model: str, artifact_id: str) -> ArtifactRecord:
        """Read one artifact. Raises `UnknownArtifact`."""
        return _parse(ArtifactRecord, await self._get(_artifact_path(model, artifact_id)))

    async def artifacts(self, model: str) -> tuple[ArtifactRecord, ...]:
        """Read a model's artifacts, newest first."""
        return _parse(ArtifactList, await self._get(f"/v1/artifacts/{_name(model)}")).artifacts

    async def releases(self, service: Service) -> tuple[ReleaseRecord, ...]:
        """Read a service's releases, newest first."""
        return _parse(ReleaseList, await self._get(f"/v1/releases/{service}")).releases

    async def wave_grants(self, service: Service) -> tuple[WaveGrant, ...]:
        """Read a service's wave grants that are in force."""
        return _parse(GrantList, await self._get(f"/v1/grants/{service}")).grants

    async def approve_release(self, request: ApprovalRequest) -> Approval:
        """Approve a release under the token's name; a repeat of the operation id is a no-op."""
        content = request.model_dump(mode="json", exclude={"service"})
        path = f"/v1/approvals/{request.service}"
        return _parse(Approval, _checked(await self._request("POST", path, json=content)))

    async def approval(self, service: Service, approval_id: str) -> Approval:
        """Read one approval of a service's releases. Raises `UnknownApproval`."""
        return _parse(Approval, await self._get(f"/v1/approvals/{service}/{_name(approval_id)}"))

    async def record_broken_glass(self, service: Service, broken: BrokenGlass) -> None:
        """Record that traffic was moved past the release; a repeat of the operation id is a no-op."""
        _checked(await self._request("POST", f"/v1/break-glass/{service}", content=broken.model_dump_json()))

    async def audit(self, service: Service, release_id: str | None = None) -> tuple[AuditRow, ...]:
        """Read all of a service's audit rows, oldest first."""
        query = AuditQuery(environment=service.environment, model=service.model, release_id=release_id)
        return await read_all(self.audit_page, query)

    async def audit_page(self, query: AuditQuery) -> tuple[AuditRow, ...]:
        """Read the first rows that a query selects, oldest first; for all models where it names none."""
        whole, service = f"/v1/chains/{query.environment}", f"/v1/audit/{query.environment}/{query.model}"
        path = whole if query.model is None else service
        params = AuditFilters.of(query).model_dump(mode="json", exclude_none=True)
        return _parse(AuditRows, _checked(await self._request("GET", path, params=params))).rows

    async def audit_head(self, environment: str) -> AuditHead:
        """Read the place and the hash of a chain's newest row."""
        return _parse(AuditHead, await self._get(f"/v1/chains/{_name(environment)}/head"))

    async def _get(self, path: str) -> httpx.Response:
        return _checked(await self._request("GET", path))

    async def _post_artifact(self, path: str, body: dict[str, Any]) -> ArtifactRecord:
        return _parse(ArtifactRecord, _checked(await self._request("POST", path, json=body)))

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        if not self._has_token:
            raise Unauthorised(
                "The registry's token is not set, or no token at all; put one that `weightshift token issue` "
                "printed into WEIGHTSHIFT_REGISTRY_TOKEN (a runtime's: WEIGHTSHIFT_RUNTIME_REGISTRY_TOKEN)."
            )
        try:
            # httpx bounds each read; this bounds the whole, a registry that dribbles included.
            async with asyncio.timeout(options.get("timeout", self._timeout)):
                async with self._http.stream(method, path, **options) as response:
                    return await _read(response)
        except (httpx.RequestError, httpx.InvalidURL, TimeoutError) as error:
            raise RegistryUnreachable(
                f"The registry at {self._http.base_url} does not answer ({type(error).__name__}); "
                "check WEIGHTSHIFT_REGISTRY_URL and that it runs."
            ) from error


async def _read(response: httpx.Response) -> httpx.Response:
    """Return a response with its content. Raises `RegistryUnreachable` when that is too long."""
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > MOST_ANSWER_BYTES:
            raise RegistryUnreachable(
                f"The registry at {response.url.host} answered with more than {MOST_ANSWER_BYTES} bytes; "
                "check WEIGHTSHIFT_REGISTRY_URL."
            )
    return httpx.Response(response.status_code, content=bytes(content), request=response.request)


def _checked_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidInput("WEIGHTSHIFT_REGISTRY_URL is not http://host:port; set it so.")
    return url


def _artifact_path(model: str, artifact_id: str) -> str:
    return f"/v1/artifacts/{_name(model)}/{_name(artifact_id)}"


def _name(text: str) -> str:
    """Return a part of a path. Raises `InvalidInput` for what would make another path of it."""
    if not _NAME.fullmatch(text):
        raise InvalidInput(f"{text!r} is not a name of [A-Za-z0-9._-]; check what it should be.")
    return text


def _checked(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    try:
        error = response.json()["error"]
        kind, message = _ERRORS[error["type"]], str(error["message"])
    except (ValueError, LookupError, TypeError, RecursionError) as cause:
        # Not the registry's own words: a proxy's, or those of something else at this address.
        raise RegistryUnreachable(
            f"The registry at {response.url.host} answered HTTP {response.status_code} without a reason; "
            "check WEIGHTSHIFT_REGISTRY_URL."
        ) from cause
    raise kind(message)


def _parse(model: type[_Model], response: httpx.Response) -> _Model:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        problems = clean_text(describe_problems(error), longest=300)
        raise RegistryUnreachable(
            f"The registry's answer is not readable ({problems}); compare the versions."
        ) from error

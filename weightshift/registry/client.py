"""The registry over HTTP, for everybody who holds no database password: runtimes and the command line."""

import asyncio
import inspect
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from weightshift import errors
from weightshift.contracts.approval import RejectedArtifact
from weightshift.contracts.evidence import AuditRow
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import ReleaseRecord
from weightshift.contracts.target import Target, Targets
from weightshift.errors import RegistryUnreachable, WeightshiftError

_Model = TypeVar("_Model", bound=BaseModel)

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
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {token}"},
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
        return _parse_list(InstanceState, await self._get(f"/v1/instances/{service}"), "instances")

    async def register_artifact(self, record: ArtifactRecord) -> ArtifactRecord:
        """Register an artifact as pending; a repeat is a no-op. Raises `ArtifactConflict`."""
        return await self._post_artifact("/v1/artifacts", record.model_dump(mode="json"))

    async def approve_artifact(self, model: str, artifact_id: str) -> ArtifactRecord:
        """Approve an artifact, which is ready once enough people did.

        Raises `UnknownArtifact`, `Conflict` for a rejected one.
        """
        return await self._post_artifact(f"/v1/artifacts/{model}/{artifact_id}/approve", {})

    async def reject_artifact(self, model: str, artifact_id: str, reason: str) -> RejectedArtifact:
        """Move an artifact to rejected, for ever; the answer names where it is in use.

        Raises `UnknownArtifact`.
        """
        path = f"/v1/artifacts/{model}/{artifact_id}/reject"
        return _parse(RejectedArtifact, _checked(await self._request("POST", path, json={"reason": reason})))

    async def artifact(self, model: str, artifact_id: str) -> ArtifactRecord:
        """Read one artifact. Raises `UnknownArtifact`."""
        return _parse(ArtifactRecord, await self._get(f"/v1/artifacts/{model}/{artifact_id}"))

    async def artifacts(self, model: str) -> tuple[ArtifactRecord, ...]:
        """Read a model's artifacts, newest first."""
        return _parse_list(ArtifactRecord, await self._get(f"/v1/artifacts/{model}"), "artifacts")

    async def releases(self, service: Service) -> tuple[ReleaseRecord, ...]:
        """Read a service's releases, newest first."""
        return _parse_list(ReleaseRecord, await self._get(f"/v1/releases/{service}"), "releases")

    async def audit(self, service: Service, release_id: str | None = None) -> tuple[AuditRow, ...]:
        """Read a service's audit rows, oldest first."""
        params = {} if release_id is None else {"release": release_id}
        response = _checked(await self._request("GET", f"/v1/audit/{service}", params=params))
        return _parse_list(AuditRow, response, "rows")

    async def _get(self, path: str) -> httpx.Response:
        return _checked(await self._request("GET", path))

    async def _post_artifact(self, path: str, body: dict[str, Any]) -> ArtifactRecord:
        return _parse(ArtifactRecord, _checked(await self._request("POST", path, json=body)))

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            # httpx bounds each read; this bounds the whole, a registry that dribbles included.
            async with asyncio.timeout(options.get("timeout", self._timeout)):
                return await self._http.request(method, path, **options)
        except (httpx.TransportError, httpx.InvalidURL, TimeoutError) as error:
            raise RegistryUnreachable(
                f"The registry at {self._http.base_url} does not answer ({type(error).__name__}); "
                "check WEIGHTSHIFT_REGISTRY_URL and that it runs."
            ) from error


def _checked(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    try:
        error = response.json()["error"]
        kind, message = _ERRORS[error["type"]], str(error["message"])
    except (ValueError, LookupError, TypeError) as cause:
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
        raise RegistryUnreachable("The registry's answer is not readable; compare the versions.") from error


def _parse_list(model: type[_Model], response: httpx.Response, name: str) -> tuple[_Model, ...]:
    try:
        return tuple(model.model_validate(item) for item in response.json()[name])
    except (ValueError, LookupError, TypeError) as error:
        raise RegistryUnreachable("The registry's answer is not readable; compare the versions.") from error

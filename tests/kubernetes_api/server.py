"""An API server like Kubernetes' over real HTTP: versions, schemas, roles, and the ways it fails."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.kubernetes_api.patches import PatchError, json_patch, merge_patch
from tests.kubernetes_api.schemas import custom_resources
from weightshift.local.ports import HOST

Object = dict[str, Any]
_RESOURCES = custom_resources()
_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True)
class Fault:
    """What happens to the next request of a method, once.

    `status` answers with it, and with `retry_after` in seconds; `applied` does what was asked first;
    `cut` ends the connection instead of an answer; `delay` in seconds comes before everything.
    """

    method: str
    status: int = 0
    retry_after: str = ""
    applied: bool = False
    cut: bool = False
    delay: float = 0.0


class KubernetesApi:
    """Objects by plural, namespace and name. Whoever holds `token` may do what `allowed` holds.

    `requests` holds every method and path, oldest first. `meanwhile` runs once, right before the next
    patch is applied: somebody else was faster. `controller` runs after every change of an object.
    """

    token = "a-service-account-token"

    def __init__(self) -> None:
        self.url = ""
        self.allowed: set[tuple[str, str, str]] = set()
        self.requests: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self.meanwhile: Callable[[], None] | None = None
        self.controller: Callable[[str, Object], None] = lambda plural, stored: None
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._version = 1000

    def allow(self, verbs: str, plural: str, name: str) -> None:
        """Grant verbs, separated by spaces, on one named object; the name `*` is every object."""
        self.allowed |= {(verb, plural, name) for verb in verbs.split()}

    def create(self, plural: str, stored: Object) -> Object:
        """Put an object there, as somebody with every right."""
        metadata = {"namespace": "weightshift", "generation": 0, **stored["metadata"]}
        return self._store(plural, {**stored, "metadata": metadata})

    def delete(self, plural: str, name: str, *, namespace: str = "weightshift") -> None:
        """Take an object away."""
        del self._objects[plural, namespace, name]

    def get(self, plural: str, name: str, *, namespace: str = "weightshift") -> Object:
        """Return a copy of an object."""
        return copy.deepcopy(self._objects[plural, namespace, name])

    def edit(self, plural: str, name: str, change: Callable[[Object], None]) -> Object:
        """Change an object in place, as somebody who knows nothing of Weightshift."""
        stored = self.get(plural, name)
        change(stored)
        return self._store(plural, stored)

    def patches(self) -> int:
        """How many patches have been asked for."""
        return sum(method == "PATCH" for method, _ in self.requests)

    def _store(self, plural: str, stored: Object) -> Object:
        """Store what the schema makes of an object, with a new version. Raises `ValueError`."""
        kind = _RESOURCES.get(plural)
        admitted = copy.deepcopy(stored) if kind is None else kind.admit(stored)
        metadata = admitted["metadata"]
        key = (plural, metadata["namespace"], metadata["name"])
        before = self._objects.get(key)
        if before is not None and admitted == before:
            return before
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        if before is None or before.get("spec") != admitted.get("spec"):
            metadata["generation"] = metadata.get("generation", 0) + 1
        self._objects[key] = admitted
        self.controller(plural, admitted)
        return admitted

    # --- over HTTP ------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, or fail it as told."""
        self.requests.append((request.method, request.path))
        await request.read()  # once and for all: a client that hangs up has asked all the same
        fault = next((one for one in self.faults if one.method == request.method), None)
        if fault is None:
            return await self._answer(request)
        self.faults.remove(fault)
        await asyncio.sleep(fault.delay)
        if fault.applied or (not fault.status and not fault.cut):
            answer = await self._answer(request)
            if not fault.status and not fault.cut:
                return answer
        if fault.cut:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
        return _refusal(fault.status, "told to fail", headers)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("authorization", "").lower() != f"bearer {self.token}":
            return _refusal(401, "Unauthorized")
        plural, name = request.match_info["plural"], request.match_info.get("name", "")
        subresource = request.match_info.get("subresource", "")
        verb = {"GET": "get" if name else "list", "PATCH": "patch"}[request.method]
        resource = f"{plural}/{subresource}" if subresource else plural
        if not {(verb, resource, name), (verb, resource, "*")} & self.allowed:
            return _refusal(403, f'{resource} "{name}" is forbidden: cannot {verb}')
        if not name:
            return self._list(request, plural)
        key = (plural, request.match_info["namespace"], name)
        if key not in self._objects:
            return _refusal(404, f'{plural} "{name}" not found')
        if request.method == "PATCH":
            return await self._patch(request, key)
        return web.json_response(self._objects[key])

    def _list(self, request: web.Request, plural: str) -> web.Response:
        wanted = dict(one.split("=", 1) for one in request.query.get("labelSelector", "").split(",") if one)
        items = [
            stored
            for (kind, namespace, _), stored in self._objects.items()
            if kind == plural
            and namespace == request.match_info["namespace"]
            and wanted.items() <= stored["metadata"].get("labels", {}).items()
        ]
        return web.json_response({"kind": "List", "items": items})

    async def _patch(self, request: web.Request, key: tuple[str, str, str]) -> web.Response:
        if self.meanwhile is not None:
            other, self.meanwhile = self.meanwhile, None
            other()
        body, current = json.loads(await request.read()), self._objects[key]
        try:
            if request.content_type == _JSON_PATCH:
                patched = json_patch(current, body)
            elif request.content_type == _MERGE_PATCH:
                patched = merge_patch(current, body)
            else:
                return _refusal(415, f"{request.content_type} is not served")
            version = patched["metadata"].get("resourceVersion")
            if version != current["metadata"]["resourceVersion"]:
                return _refusal(409, "the object has been modified; please apply your changes to the latest")
            stored = self._store(key[0], patched)
        except PatchError as error:
            return _refusal(422, str(error))
        except ValueError as error:
            return _refusal(422, f"{key[0]} {key[2]} is invalid: {error}")
        return web.json_response(stored)


def _refusal(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": status}
    return web.json_response(body, status=status, headers=headers)


@asynccontextmanager
async def kubernetes_api() -> AsyncIterator[KubernetesApi]:
    """Run an API server on a loopback port of its own."""
    api = KubernetesApi()
    application = web.Application()
    for prefix in ("/apis/{group}/{version}", "/api/{version}"):
        collection = f"{prefix}/namespaces/{{namespace}}/{{plural}}"
        for path in (collection, f"{collection}/{{name}}", f"{collection}/{{name}}/{{subresource}}"):
            application.router.add_route("*", path, api.handle)
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        port = runner.addresses[0][1]
        api.url = f"http://{HOST}:{port}"
        yield api
    finally:
        await runner.cleanup()

"""A client of the Kubernetes API for a handful of named objects: get, list, and compare-and-set patches."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from weightshift.errors import KubernetesRefused, KubernetesUnreachable
from weightshift.settings import KubernetesSettings

Object = dict[str, Any]
Operation = dict[str, Any]

_JSON_PATCH = "application/json-patch+json"
_CONFLICT = 409
_TOO_MANY = 429
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_LONGEST_MESSAGE = 300


class KubernetesClient:
    """Connects on first use, from inside the cluster or by a kubeconfig. Close it with `aclose`.

    Every call, with all its attempts, ends within the settings' `timeout` seconds. Nothing is watched:
    what is read is read when it is needed, so there is no state to be stale.
    """

    def __init__(self, *, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._connecting = asyncio.Lock()
        self._api: ApiClient | None = None

    async def aclose(self) -> None:
        """Close the connections."""
        if self._api is not None:
            await self._api.close()

    async def get(self, path: str) -> Object:
        """Return an object. Raises `KubernetesRefused`, and `KubernetesUnreachable` when time is up."""
        async with self._deadline(path) as attempt:
            while True:
                found = await attempt(partial(self._call, "GET", path))
                if found is not None:
                    return found

    async def list_items(self, path: str, *, labels: dict[str, str]) -> list[Object]:
        """Return the objects of a collection that carry these labels. Raises like `get`."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        found = await self.get(f"{path}?{urlencode({'labelSelector': selector})}")
        return list(found.get("items", []))

    async def compare_and_set(self, path: str, change: Callable[[Object], list[Operation]]) -> Object:
        """Apply a JSON patch to the very version of the object that it was made for; returns the object.

        `change` gets the object as it is and returns what to do; nothing ends the call. It is asked again
        after every conflict, and whenever the fate of a patch is unknown: an answer that was lost is never
        taken for a patch that was. Raises like `get`, and what `change` raises.
        """
        async with self._deadline(path) as attempt:
            while True:
                found = await attempt(partial(self._call, "GET", path))
                if found is None:
                    continue
                operations = change(found)
                if not operations:
                    return found
                version = found["metadata"]["resourceVersion"]
                # A stale version is refused as a conflict; a `test` of it would be refused as invalid.
                guard = {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
                patched = await attempt(partial(self._call, "PATCH", path, [guard, *operations]))
                if patched is not None:
                    return patched

    @asynccontextmanager
    async def _deadline(self, path: str) -> AsyncIterator["_Attempt"]:
        attempt = _Attempt(until=asyncio.get_running_loop().time() + self._settings.timeout)
        try:
            async with asyncio.timeout(self._settings.timeout):
                yield attempt
        except TimeoutError:
            raise KubernetesUnreachable(
                f"the Kubernetes API did not serve {path} within {self._settings.timeout:g} s "
                f"({attempt.trouble}); try again"
            ) from None

    async def _call(self, method: str, path: str, body: list[Operation] | None = None) -> Object:
        api = await self._connected()
        headers = {"Accept": "application/json", "Content-Type": _JSON_PATCH}
        request = await api.param_serialize(
            method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout)
        response = await api.call_api(*request[:4], _request_timeout=timeout)
        content = await response.read()
        if response.status >= 400:
            raise _refusal(response.status, content, response.getheader("Retry-After", ""))
        answer: Object = json.loads(content)
        return answer

    async def _connected(self) -> ApiClient:
        async with self._connecting:
            if self._api is None:
                self._api = ApiClient(await _configuration(self._settings))
            return self._api


class _Attempt:
    """Makes one call; None when it is worth another try, after a pause."""

    def __init__(self, *, until: float) -> None:
        self.trouble = "no answer yet"
        self._until = until
        self._pause = _FIRST_PAUSE

    async def __call__(self, call: Callable[[], Awaitable[Object]]) -> Object | None:
        try:
            found = await call()
        except KubernetesRefused as error:
            if error.status not in (_CONFLICT, _TOO_MANY) and error.status < 500:
                raise
            self.trouble = str(error)
            if error.status == _CONFLICT:
                # Somebody was faster, a controller with its status perhaps: nothing has to recover first.
                self._pause = _FIRST_PAUSE
            await self._wait(error.retry_after)
        except (aiohttp.ClientError, OSError, config.ConfigException, json.JSONDecodeError) as error:
            self.trouble = type(error).__name__
            await self._wait(None)
        else:
            return found
        return None

    async def _wait(self, asked_for: float | None) -> None:
        jittered = self._pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
        seconds = jittered if asked_for is None else max(asked_for, jittered)
        if asyncio.get_running_loop().time() + seconds > self._until:
            raise TimeoutError
        await asyncio.sleep(seconds)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)


def _refusal(status: int, content: bytes, retry_after: str) -> KubernetesRefused:
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        message = f"status {status}"
    seconds = float(retry_after) if retry_after.isdigit() else None
    return KubernetesRefused(message[:_LONGEST_MESSAGE], status=status, retry_after=seconds)


async def _configuration(settings: KubernetesSettings) -> Configuration:
    """Raises `KubernetesUnreachable` when there is nothing to connect to."""
    found = Configuration()
    try:
        if settings.kubeconfig is None:
            config.load_incluster_config(client_configuration=found)
        else:
            await config.load_kube_config(
                config_file=str(settings.kubeconfig),
                context=settings.context or None,
                client_configuration=found,
                persist_config=False,
            )
    except config.ConfigException as error:
        raise KubernetesUnreachable(
            f"no cluster to connect to ({error}); run inside one, or set WEIGHTSHIFT_KUBERNETES_KUBECONFIG"
        ) from error
    return found

"""Asks istiod which proxies have a version of an object: the data plane's own word for a split."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from weightshift.errors import MeshUnreachable

_NOT_TRACKED = 409


class Istiod:
    """Every istiod of a mesh, each of which knows the proxies that are connected to it.

    Where istiod keeps track of versions (`config_distribution`), each proxy's version is compared with the
    object's. Where it keeps none, a proxy counts as behind while it has not acknowledged the routes that
    were sent to it (`syncz`). `timeout` in seconds. Close it with `aclose`.
    """

    def __init__(self, *, urls: Sequence[str], token_file: Path | None, timeout: float) -> None:
        self._urls = tuple(url.strip().rstrip("/") for url in urls)
        self._token_file = token_file
        self._client = httpx.AsyncClient(timeout=timeout, trust_env=False)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def behind(self, *, resource: str, version: str) -> tuple[str, ...]:
        """Return the proxies that do not have this version of `VirtualService/namespace/name` yet.

        Raises `MeshUnreachable`.
        """
        answers = await asyncio.gather(*(self._behind(url, resource, version) for url in self._urls))
        return tuple(sorted(proxy for answer in answers for proxy in answer))

    async def _behind(self, url: str, resource: str, version: str) -> list[str]:
        tracked = await self._ask(f"{url}/debug/config_distribution", {"resource": resource})
        if tracked is not None and any(one.get("route_acked") for one in tracked):
            return [one["proxy"] for one in tracked if _is_older(one.get("route_acked", ""), version)]
        synced = await self._ask(f"{url}/debug/syncz", {})
        return [one["proxy"] for one in synced or [] if one.get("route_sent") != one.get("route_acked")]

    async def _ask(self, url: str, parameters: dict[str, str]) -> list[dict[str, Any]] | None:
        """Return the answer's rows; None where istiod does not keep track of this."""
        try:
            response = await self._client.get(url, params=parameters, headers=self._headers())
            if response.status_code == _NOT_TRACKED:
                return None
            response.raise_for_status()
            rows: list[dict[str, Any]] = response.json() or []
        except (httpx.HTTPError, json.JSONDecodeError, OSError) as error:
            raise MeshUnreachable(
                f"istiod at {url} does not answer ({type(error).__name__}); see WEIGHTSHIFT_MESH_ISTIOD_URLS"
            ) from error
        return rows

    def _headers(self) -> dict[str, str]:
        # Read each time: a projected token is replaced within the hour.
        if self._token_file is None:
            return {}
        return {"authorization": f"Bearer {self._token_file.read_text().strip()}"}


def _is_older(acknowledged: str, version: str) -> bool:
    """Compare two versions of one object; a proxy that was never sent it (no sidecar there) is not behind."""
    if not acknowledged:
        return False
    if acknowledged.isdigit() and version.isdigit():
        return int(acknowledged) < int(version)
    return acknowledged != version

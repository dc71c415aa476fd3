"""The documented filter in front of the documented matches, on a real Envoy: who goes where."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import weightshift.mesh
from weightshift.local.binaries import find_binary
from weightshift.local.ports import HOST, free_ports
from weightshift.local.processes import ManagedProcess, ProcessSpec, answers
from weightshift.mesh.buckets import BUCKET_HEADER, BUCKETS, bucket_pattern

FILTER = (Path(weightshift.mesh.__file__).parent / "bucket_filter.lua").read_text()
PERCENTS = (5, 25, 50)
_EXTENSIONS = "type.googleapis.com/envoy.extensions.filters"


def route(percent: int, first: int, last: int, answer: str) -> dict[str, Any]:
    """Answer requests of these buckets the way Istio has Envoy match them."""
    pattern = {"safe_regex": {"regex": bucket_pattern(first, last)}}
    match = {"prefix": f"/{percent}/", "headers": [{"name": BUCKET_HEADER, "string_match": pattern}]}
    return {"match": match, "direct_response": {"status": 200, "body": {"inline_string": answer}}}


def configuration(port: int, admin_port: int) -> dict[str, Any]:
    routes = [
        rule
        for percent in PERCENTS
        for rule in (route(percent, 0, percent - 1, "canary"), route(percent, percent, BUCKETS - 1, "stable"))
    ]
    by_weight = {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "-"}}}
    manager = {
        "@type": f"{_EXTENSIONS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "buckets",
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [*routes, by_weight]}]
        },
        "http_filters": [
            {
                "name": "weightshift-bucket",
                "typed_config": {
                    "@type": f"{_EXTENSIONS}.http.lua.v3.Lua",
                    "default_source_code": {"inline_string": FILTER},
                },
            },
            {"name": "router", "typed_config": {"@type": f"{_EXTENSIONS}.http.router.v3.Router"}},
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {
        "admin": {"address": address(admin_port)},
        "static_resources": {
            "listeners": [{"name": "buckets", "address": address(port), "filter_chains": [chain]}]
        },
    }


def address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": HOST, "port_value": port}}


@pytest.fixture(scope="module")
async def envoy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    directory = tmp_path_factory.mktemp("envoy")
    port, admin_port = free_ports(2)
    path = directory / "envoy.json"
    path.write_text(json.dumps(configuration(port, admin_port)))
    command = (str(find_binary("envoy")), "-c", str(path), "--disable-hot-restart", "--concurrency", "1")
    process = ManagedProcess(
        spec=ProcessSpec(
            name="envoy", command=(*command, "--log-level", "warning"), ready=answers(admin_port, "/ready")
        ),
        directory=directory,
    )
    await process.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}") as client:
            yield client
    finally:
        await process.stop()


async def cohort(envoy: httpx.AsyncClient, percent: int, **headers: str) -> str:
    return (await envoy.get(f"/{percent}/", headers=headers)).text


async def test_users_of_a_smaller_canary_stay_in_a_larger_one(envoy: httpx.AsyncClient) -> None:
    users = [f"user-{number}" for number in range(200)]
    before: set[str] = set()
    for percent in PERCENTS:
        where = {user: await cohort(envoy, percent, **{"x-user-id": user}) for user in users}
        assert set(where.values()) == {"canary", "stable"}
        canary = {user for user, arm in where.items() if arm == "canary"}
        assert before <= canary
        # Five standard deviations of as many fair draws.
        assert abs(len(canary) - 2 * percent) < 5 * (2 * percent) ** 0.5
        before = canary


async def test_a_user_has_the_same_cohort_every_time(envoy: httpx.AsyncClient) -> None:
    for user in ("a", "user-7", "d9428888-122b-11e1-b85c-61cd3cbb3210", "kate@example.com"):
        arms = Counter([await cohort(envoy, 25, **{"x-user-id": user}) for _ in range(5)])
        assert len(arms) == 1


async def test_a_bucket_may_come_from_the_client(envoy: httpx.AsyncClient) -> None:
    for bucket in range(BUCKETS):
        for percent in PERCENTS:
            expected = "canary" if bucket < percent else "stable"
            assert await cohort(envoy, percent, **{BUCKET_HEADER: str(bucket)}) == expected


@pytest.mark.parametrize("headers", [{}, {BUCKET_HEADER: "100"}, {BUCKET_HEADER: "x"}, {"x-user-id": ""}])
async def test_requests_without_a_bucket_go_by_the_weights(
    envoy: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert await cohort(envoy, 25, **headers) == "-"


async def test_a_users_own_bucket_cannot_be_chosen(envoy: httpx.AsyncClient) -> None:
    alone = await cohort(envoy, 50, **{"x-user-id": "user-1"})
    for bucket in ("0", "99"):
        assert await cohort(envoy, 50, **{"x-user-id": "user-1", BUCKET_HEADER: bucket}) == alone

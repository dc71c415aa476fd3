import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightshift.contracts.identity import Fence
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import MeshUnreachable
from weightshift.mesh.envoy_bootstrap import Endpoint, EnvoyBootstrap, bootstrap
from weightshift.mesh.envoy_config import parse_config_dump, parse_route_file, route_configuration, route_file

states = st.builds(
    MeshState,
    split=st.builds(TrafficSplit.with_canary, st.integers(0, 100), sticky=st.booleans())
    | st.builds(TrafficSplit.with_canary, st.just(100), mirrored=st.integers(1, 100)),
    fence=st.none() | st.builds(Fence, epoch=st.integers(0, 10**9), sequence=st.integers(0, 10**9)),
)


@given(state=states)
def test_what_is_written_is_read_back(state: MeshState) -> None:
    content = json.loads(json.dumps(route_file(state)))
    assert parse_route_file(content) == state
    assert parse_config_dump({"configs": [{"route_config": content["resources"][0]}]}) == state


@given(canary=st.integers(0, 100))
def test_both_weights_are_explicit_and_sum_to_a_hundred(canary: int) -> None:
    configuration = route_configuration(MeshState(split=TrafficSplit.with_canary(canary)))
    for route in configuration["virtual_hosts"][0]["routes"]:
        clusters = route["route"]["weighted_clusters"]["clusters"]
        assert [(cluster["name"], cluster["weight"]) for cluster in clusters] == [
            ("canary", canary),
            ("stable", 100 - canary),
        ]


def test_routes_that_differ_are_none_of_ours() -> None:
    content = route_file(MeshState(split=TrafficSplit.with_canary(25)))
    other = route_configuration(MeshState(split=TrafficSplit.with_canary(50)))
    content["resources"][0]["virtual_hosts"][0]["routes"][0] = other["virtual_hosts"][0]["routes"][0]
    with pytest.raises(MeshUnreachable, match="not one of ours"):
        parse_route_file(content)


def test_a_file_of_a_single_route_is_still_read() -> None:
    state = MeshState(split=TrafficSplit.with_canary(25))
    content = route_file(state)
    del content["resources"][0]["virtual_hosts"][0]["routes"][0]
    assert parse_route_file(content) == state


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"resources": []},
        {"resources": [{"virtual_hosts": []}]},
        {"resources": [{"virtual_hosts": [{"routes": [{"route": {"cluster": "stable"}}]}]}]},
    ],
)
def test_a_foreign_route_file_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(MeshUnreachable):
        parse_route_file(content)


def test_an_envoy_without_routes_is_not_ready() -> None:
    with pytest.raises(MeshUnreachable, match="no route yet"):
        parse_config_dump({"configs": [{"route_config": {"name": "other"}}]})


def test_only_the_canary_fails_over() -> None:
    endpoints = (Endpoint(host="127.0.0.1", port=1),)
    configuration = bootstrap(
        EnvoyBootstrap(
            host="127.0.0.1",
            port=2,
            admin_host="127.0.0.1",
            admin_port=3,
            route_directory="/routes",
            route_file="/routes/route.json",
            stable=endpoints,
            canary=endpoints,
        )
    )
    clusters = {cluster["name"]: cluster for cluster in configuration["static_resources"]["clusters"]}
    assert clusters["canary"]["cluster_type"]["typed_config"]["clusters"] == ["canary-instances", "stable"]
    assert "cluster_type" not in clusters["stable"]

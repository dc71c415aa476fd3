"""Envoy's configuration as plain data. Pure: settings in, JSON-ready dictionaries out.

The route file is the only part that changes while Envoy runs. It carries the fence of the command
that wrote it, so that the split and its fence change together and are read back together.
"""

from typing import Any

from weightshift.contracts.identity import Cohort, Fence
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import MeshUnreachable

ROUTE_NAME = "weightshift"
USER_HEADER = "x-user-id"
STREAM_PATH = "/generate"
CANARY_INSTANCES = "canary-instances"
_METADATA = "weightshift"
_ROUTE_TYPE = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"

# Every attempt has to fit into the whole; a prediction that takes longer than a try is lost anyway.
_REQUEST_TIMEOUT = "15s"
_TRY_TIMEOUT = "5s"
# The runtime sends a comment every 15 s while a stream has nothing to say.
_STREAM_TIMEOUTS = {"timeout": "0s", "idle_timeout": "60s"}
_RETRIES = 3
# Two tries on the chosen cohort, the others where the aggregate cluster fails over to.
_TRIES_PER_COHORT = 2


def route_configuration(state: MeshState) -> dict[str, Any]:
    """Return the content of the route file for a split and the fence that ordered it."""
    return {
        "@type": _ROUTE_TYPE,
        "name": ROUTE_NAME,
        "metadata": {"filter_metadata": {_METADATA: _command_fields(state)}},
        "virtual_hosts": [{"name": ROUTE_NAME, "domains": ["*"], "routes": _routes(state.split)}],
    }


def route_file(state: MeshState) -> dict[str, Any]:
    """Return the route configuration as the discovery response that Envoy reads from a file."""
    return {"resources": [route_configuration(state)]}


def parse_route_file(content: dict[str, Any]) -> MeshState:
    """Return the split and fence in a route file. Raises `MeshUnreachable` when it is not ours."""
    try:
        (configuration,) = content["resources"]
    except (KeyError, ValueError, TypeError) as error:
        raise MeshUnreachable(
            f"the route file is not one of ours ({error}); write the split again"
        ) from error
    return parse_route_configuration(configuration)


def parse_route_configuration(content: dict[str, Any]) -> MeshState:
    """Return the split and fence in a route configuration, from a file or from Envoy's dump.

    Envoy leaves zeros out of its dump, so a missing weight is zero. Raises `MeshUnreachable` when
    the configuration is not one of ours.
    """
    try:
        fields = content.get("metadata", {}).get("filter_metadata", {}).get(_METADATA, {})
        sticky = bool(fields.get("sticky", False))
        (split,) = {_split_of(route, sticky=sticky) for route in content["virtual_hosts"][0]["routes"]}
        return MeshState(split=split, fence=Fence.model_validate(fields) if "epoch" in fields else None)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise MeshUnreachable(f"Envoy's route is not one of ours ({error}); write the split again") from error


def parse_config_dump(content: dict[str, Any]) -> MeshState:
    """Return the split and fence Envoy uses. Raises `MeshUnreachable` when it has no route yet."""
    for entry in content.get("configs", []):
        route = entry.get("route_config", {})
        if route.get("name") == ROUTE_NAME:
            return parse_route_configuration(route)
    raise MeshUnreachable("Envoy has no route yet; wait until it has read its route file")


def _split_of(route: dict[str, Any], *, sticky: bool) -> TrafficSplit:
    clusters = route["route"]["weighted_clusters"]["clusters"]
    weights = {cluster["name"]: int(cluster.get("weight", 0)) for cluster in clusters}
    return TrafficSplit(
        stable=weights[Cohort.STABLE],
        canary=weights[Cohort.CANARY],
        mirrored=_mirrored(route["route"]),
        sticky=sticky,
    )


def _command_fields(state: MeshState) -> dict[str, int | bool]:
    sticky = {"sticky": True} if state.split.sticky else {}
    if state.fence is None:
        return {**sticky}
    return {"epoch": state.fence.epoch, "sequence": state.fence.sequence, **sticky}


def _mirrored(route: dict[str, Any]) -> int:
    """Return the percentage that is copied to stable; Envoy leaves a numerator of zero out."""
    policies = route.get("request_mirror_policies", [])
    for policy in policies:
        if policy["cluster"] == Cohort.STABLE.value:
            return int(policy["runtime_fraction"]["default_value"].get("numerator", 0))
    return 0


def _routes(split: TrafficSplit) -> list[dict[str, Any]]:
    """Return the same split twice: streams may last, and nothing else may."""
    return [
        _route(split, {"path": STREAM_PATH}, timeouts=_STREAM_TIMEOUTS, retries=_retry_policy()),
        _route(
            split,
            {"prefix": "/"},
            timeouts={"timeout": _REQUEST_TIMEOUT},
            retries={**_retry_policy(), "per_try_timeout": _TRY_TIMEOUT},
        ),
    ]


def _route(
    split: TrafficSplit, match: dict[str, str], *, timeouts: dict[str, str], retries: dict[str, Any]
) -> dict[str, Any]:
    return {
        "match": match,
        "route": {
            **timeouts,
            "weighted_clusters": {
                "use_hash_policy": True,
                # The canary comes first: a user's hash that falls below its weight stays below a higher one.
                "clusters": [
                    {"name": Cohort.CANARY.value, "weight": split.canary},
                    {"name": Cohort.STABLE.value, "weight": split.stable},
                ],
            },
            "hash_policy": [{"header": {"header_name": USER_HEADER}}],
            "retry_policy": retries,
            **_mirror(split),
        },
    }


def _mirror(split: TrafficSplit) -> dict[str, Any]:
    """Copy a share of the requests to stable; Envoy sends the copies and forgets them."""
    if not split.mirrored:
        return {}
    share = {"default_value": {"numerator": split.mirrored, "denominator": "HUNDRED"}}
    return {"request_mirror_policies": [{"cluster": Cohort.STABLE.value, "runtime_fraction": share}]}


def _retry_policy() -> dict[str, Any]:
    """Retry what cannot have been answered: predictions have no side effects, so a repeat is safe.

    Nothing of which the first byte has gone to the client is ever repeated.
    """
    return {
        "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
        "retriable_status_codes": [503, 504],
        "num_retries": _RETRIES,
        "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.05s"},
        "host_selection_retry_max_attempts": "10",
        "retry_host_predicate": [
            _extension(
                "envoy.retry_host_predicates.previous_hosts",
                "retry.host.previous_hosts.v3.PreviousHostsPredicate",
            )
        ],
        "retry_priority": _extension(
            "envoy.retry_priorities.previous_priorities",
            "retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
            update_frequency=_TRIES_PER_COHORT,
        ),
    }


def _extension(name: str, message: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "typed_config": {"@type": f"type.googleapis.com/envoy.extensions.{message}", **fields},
    }

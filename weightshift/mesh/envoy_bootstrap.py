"""Envoy's static configuration: listener, clusters and health checks. Pure."""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from weightshift.contracts.base import Message
from weightshift.contracts.identity import Cohort
from weightshift.mesh.envoy_config import CANARY_INSTANCES, ROUTE_NAME

_EXTENSIONS = "type.googleapis.com/envoy.extensions"
_HEALTH_INTERVAL = "0.25s"
_HEALTH_TIMEOUT = "1s"
_CONNECT_TIMEOUT = "0.25s"
_NAME_REFRESH = "1s"
_MAXIMUM = 16_384


class Endpoint(Message):
    """Where one instance answers, by address; or all of a cohort, by a name that resolves to them."""

    host: str
    port: int


class EnvoyBootstrap(Message):
    """What an Envoy in front of one service needs to know. `route_directory` is watched for renames."""

    host: str
    port: int
    admin_host: str
    admin_port: int
    route_directory: str
    route_file: str
    stable: tuple[Endpoint, ...]
    canary: tuple[Endpoint, ...]


def bootstrap(settings: EnvoyBootstrap) -> dict[str, Any]:
    """Return Envoy's bootstrap configuration.

    `canary` is an aggregate: its own instances first, and stable's when none of them is healthy.
    Stable never falls back on the canary.
    """
    return {
        "node": {"id": "weightshift", "cluster": "weightshift"},
        "admin": {"address": _address(settings.admin_host, settings.admin_port)},
        "static_resources": {
            "listeners": [_listener(settings)],
            "clusters": [
                _instances(Cohort.STABLE.value, settings.stable),
                _instances(CANARY_INSTANCES, settings.canary),
                _aggregate(Cohort.CANARY.value, (CANARY_INSTANCES, Cohort.STABLE.value)),
            ],
        },
    }


def _listener(settings: EnvoyBootstrap) -> dict[str, Any]:
    manager = {
        "@type": f"{_EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": ROUTE_NAME,
        "generate_request_id": False,
        "rds": {
            "route_config_name": ROUTE_NAME,
            "config_source": {
                "resource_api_version": "V3",
                "path_config_source": {
                    "path": settings.route_file,
                    "watched_directory": {"path": settings.route_directory},
                },
            },
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_EXTENSIONS}.filters.http.router.v3.Router"},
            }
        ],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {
        "name": ROUTE_NAME,
        "address": _address(settings.host, settings.port),
        "filter_chains": [{"filters": filters}],
    }


def _instances(name: str, endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    members = [{"endpoint": {"address": _address(endpoint.host, endpoint.port)}} for endpoint in endpoints]
    return {
        "name": name,
        **_discovery(endpoints),
        "connect_timeout": _CONNECT_TIMEOUT,
        # Not by least requests: an instance that refuses everything at once would always seem idle.
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": members}]},
        "health_checks": [_health_check()],
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "circuit_breakers": _circuit_breakers(),
    }


def _discovery(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    if all(_is_address(endpoint.host) for endpoint in endpoints):
        return {"type": "STATIC"}
    return {"type": "STRICT_DNS", "dns_refresh_rate": _NAME_REFRESH, "dns_lookup_family": "ALL"}


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _aggregate(name: str, members: Sequence[str]) -> dict[str, Any]:
    return {
        "name": name,
        "connect_timeout": _CONNECT_TIMEOUT,
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {
            "name": "envoy.clusters.aggregate",
            "typed_config": {
                "@type": f"{_EXTENSIONS}.clusters.aggregate.v3.ClusterConfig",
                "clusters": list(members),
            },
        },
        "circuit_breakers": _circuit_breakers(),
    }


def _health_check() -> dict[str, Any]:
    return {
        "timeout": _HEALTH_TIMEOUT,
        "interval": _HEALTH_INTERVAL,
        # Without this, a cluster without traffic is checked once a minute.
        "no_traffic_interval": _HEALTH_INTERVAL,
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "http_health_check": {"path": "/readyz"},
    }


def _circuit_breakers() -> dict[str, Any]:
    """Bound what waits in Envoy, and retries to a share of the load so that they cannot feed an outage."""
    return {
        "thresholds": [
            {
                "max_connections": _MAXIMUM,
                "max_pending_requests": _MAXIMUM,
                "max_requests": _MAXIMUM,
                "retry_budget": {"budget_percent": {"value": 50}, "min_retry_concurrency": 100},
            }
        ]
    }


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}

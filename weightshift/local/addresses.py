"""Where a running stack answers."""

from weightshift.contracts.base import Message


class Addresses(Message):
    """Where everything of a running stack answers: URLs, but `host:port` for Temporal."""

    temporal: str
    temporal_ui: str
    prometheus: str
    envoy: str
    envoy_admin: str
    mesh_agent: str
    s3: str
    registry: str
    worker_metrics: str
    runtimes: dict[str, str]
    runtime_admins: dict[str, str]

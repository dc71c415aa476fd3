"""Settings of the control plane, one group per outside system, read from `WEIGHTSHIFT_*` variables.

Durations are seconds. Secrets are masked whenever a group is printed.
"""

import ipaddress
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from weightshift.contracts.base import Name

_SHORTEST_SECRET = 16


class TemporalSettings(BaseSettings):
    """How to reach Temporal: in the clear, or with `tls`, which any of the files (PEM) switches on.

    The server is known by the authority in `tls_authority_file`, without one by the system's; this client by
    its certificate and key.
    """

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_TEMPORAL_", env_ignore_empty=True)

    address: str = "127.0.0.1:7233"
    namespace: str = "default"
    connect_timeout: float = Field(default=5.0, gt=0)
    tls: bool = False
    tls_authority_file: Path | None = None
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection is encrypted."""
        return self.tls or any((self.tls_authority_file, self.tls_certificate_file, self.tls_key_file))


class RegistrySettings(BaseSettings):
    """How to reach the registry: `dsn` for the control plane, `url` and `token` for everybody else.

    `pusher_may_approve` lets whoever pushed an artifact, or asked for a release, be the only approver.
    """

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_REGISTRY_")

    dsn: SecretStr = SecretStr("")
    url: str = "http://127.0.0.1:8070"
    token: SecretStr = SecretStr("")
    pool_size: int = Field(default=10, ge=1)
    timeout: float = Field(default=5.0, gt=0)
    lost_after: float = Field(default=5.0, gt=0)
    pusher_may_approve: bool = False


class StoreSettings(BaseSettings):
    """Where artifacts are kept: `s3://bucket/prefix` or `file:///directory`.

    Credentials come from the standard boto3 chain, never from here.
    """

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_STORE_")

    url: str = "file:///var/lib/weightshift/artifacts"
    endpoint: str | None = None


class SigningSettings(BaseSettings):
    """The private key (PEM) that artifacts are signed with when they are pushed, or the file it is in."""

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_SIGNING_", env_ignore_empty=True)

    key: SecretStr = SecretStr("")
    key_file: Path | None = None


class AuthorisationSettings(BaseSettings):
    """The private key (PEM) that releases are authorised with, or the file it is in.

    `validity` is how long after its publication a target may be accepted for the first time.
    `accepted_keys` are public keys of earlier private keys, whose authorisations are still renewed.
    With `insecure_unsigned`, which is for development, targets are published without an authorisation.
    """

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_AUTHORISATION_", env_ignore_empty=True)

    key: SecretStr = SecretStr("")
    key_file: Path | None = None
    accepted_keys: str = ""
    accepted_keys_file: Path | None = None
    validity: float = Field(default=7 * 86_400.0, ge=60)
    insecure_unsigned: bool = False

    @property
    def has_key(self) -> bool:
        """Whether a private key is named."""
        return bool(self.key.get_secret_value() or self.key_file)


class MeshSettings(BaseSettings):
    """Which mesh there is, how to reach it, and which route in it is ours.

    `envoy`: file-driven Envoys through their mesh agents, at `agent_url` (several are separated by commas)
    with `agent_token`.

    `istio` and `gateway`: a VirtualService or an HTTPRoute, by its `namespace` and its name, `route_object`.
    In it, the rule named `route` (empty: the only rule with both backends), in which `stable` and `canary`
    name Istio's subsets, its hosts, or the backends. `destination_rule` holds the subsets; empty, they are
    not checked. `istiod_urls`, separated by commas, are asked whether every proxy has a split;
    `istiod_token_file` is the token for them. In names, `$model` and `$environment` stand for the service.

    `timeout` bounds every call; `confirm_timeout` is how long the data plane may take to show a split.
    """

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_MESH_", env_ignore_empty=True)

    adapter: Literal["envoy", "istio", "gateway"] = "envoy"
    agent_url: str = "http://127.0.0.1:8090"
    agent_token: SecretStr = SecretStr("")
    namespace: str = "weightshift"
    route_object: str = "$model"
    route: str = ""
    stable: str = "stable"
    canary: str = "canary"
    destination_rule: str = ""
    istiod_urls: str = ""
    istiod_token_file: Path | None = None
    timeout: float = Field(default=2.0, gt=0, le=4)
    confirm_timeout: float = Field(default=2.0, gt=0, le=10)


class KubernetesSettings(BaseSettings):
    """How to reach the Kubernetes API: from inside the cluster, or by `kubeconfig` and its `context`."""

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_KUBERNETES_", env_ignore_empty=True)

    kubeconfig: Path | None = None
    context: str = ""
    timeout: float = Field(default=2.0, gt=0, le=4)


class ClusterSettings(BaseSettings):
    """Which cluster the pods run in, and their objects in it; without one nothing is asked of it.

    `kubernetes`: one Deployment per cohort in `namespace`, its `autoscaler` (empty: there is none), and the
    `service` whose endpoint slices are read (empty: they are not). With `deletion_cost` the pods that were
    there before a release are the last to go after it. In names, `$model`, `$environment` and `$cohort`
    stand for what is meant.
    """

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_CLUSTER_", env_ignore_empty=True)

    adapter: Literal["none", "kubernetes"] = "none"
    namespace: str = "weightshift"
    deployment: str = "$model-$cohort"
    autoscaler: str = ""
    service: str = ""
    deletion_cost: bool = False


class MetricsSettings(BaseSettings):
    """How to reach Prometheus, and how it scrapes.

    `scrape_interval` is that of the runtimes; `calibration` is how far back stable's requests are read
    to know its latency before a stage. `mesh_errors` selects the mesh's own counter of failed requests to
    one cohort, with `$cohort` and, where it has such labels, `$model` and `$environment`: what fails on the
    way to an instance is counted by nobody else. Empty counts none.
    """

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_METRICS_")

    prometheus_url: str = "http://127.0.0.1:9090"
    timeout: float = Field(default=5.0, gt=0)
    scrape_interval: float = Field(default=15.0, gt=0)
    calibration: float = Field(default=600.0, gt=0)
    mesh_errors: str = Field(default="", pattern=r"^$|\$\{?cohort")


class ChannelForm(StrEnum):
    """What a notification looks like: signed JSON, or the text that Slack and its kin read."""

    JSON = "json"
    SLACK = "slack"


class ChannelSettings(BaseModel):
    """One receiver of notifications: its address, and the secret that its requests are signed with.

    The address is https, or http on this machine, and carries no credentials of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: SecretStr
    secret: SecretStr = SecretStr("")
    form: ChannelForm = ChannelForm.JSON

    @field_validator("url")
    @classmethod
    def _safe(cls, url: SecretStr) -> SecretStr:
        parts = urlsplit(url.get_secret_value())
        if not parts.hostname or parts.username or parts.password:
            raise ValueError("give scheme, host and path, without user and password")
        if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(parts.hostname)):
            raise ValueError("give an https address; http is for this machine only")
        return url

    @model_validator(mode="after")
    def _signed(self) -> Self:
        if self.form is ChannelForm.JSON and len(self.secret.get_secret_value()) < _SHORTEST_SECRET:
            raise ValueError(f"a json channel needs a `secret` of at least {_SHORTEST_SECRET} characters")
        return self


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class NotifySettings(BaseSettings):
    """Where notifications go: channels by name, in JSON, here or in a file that a secret is mounted as.

    `timeout` is how long a receiver may take to answer.
    """

    model_config = SettingsConfigDict(
        env_prefix="WEIGHTSHIFT_NOTIFY_", env_ignore_empty=True, hide_input_in_errors=True
    )

    channels: dict[Name, ChannelSettings] = Field(default_factory=dict)
    channels_file: Path | None = None
    timeout: float = Field(default=5.0, gt=0, le=8.0)

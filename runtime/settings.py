"""Settings of one runtime process, read from `WEIGHTSHIFT_RUNTIME_*` variables.

Durations are seconds, sizes bytes. Secrets are masked whenever the settings are printed.
"""

from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from weightshift.contracts.base import Name
from weightshift.contracts.identity import Cohort, Service


class SwapMode(StrEnum):
    """How a candidate takes over from what serves."""

    DOUBLE_BUFFER = "double-buffer"
    """Both are in memory for a while; a candidate that does not fit beside what serves is refused."""

    IN_PLACE = "in-place"
    """Over the serving weights, from host memory, while requests wait for a moment. A candidate with other
    tensors needs room of its own, as with `double-buffer`."""

    REFUSE = "refuse"
    """Not at all: another artifact needs a new process."""


class StartPolicy(StrEnum):
    """What a starting instance does before the registry has told its target."""

    TRUSTED_CACHE = "trusted-cache"
    """It serves what it served last, from the cache, so that a lost registry stops nothing."""

    WAIT = "wait"
    """It serves nothing until the registry has answered."""


class RuntimeSettings(BaseSettings):
    """What one instance serves, where it listens, and its bounds.

    `architectures` adds to those found by entry points: `module:Class`, several with commas between. A port
    of 0 chooses a free one. `admin_token` allows everything on the admin port; `metrics_token`, another one,
    `GET /metrics` alone. `live_port` answers `/livez` even while the event loop is busy; only after it
    has not turned for `stall_limit`, or a pause has taken so much longer than twice `pause_limit`, does it
    ask for a restart. `start_wait` is how long a starting instance
    waits for the registry before it is ready with its last trusted artifact. `session_deadline` is how
    long a streaming session may go on after its generation was replaced. `pause_limit` bounds how long
    requests wait for an in-place swap. A batch holds at most `max_batch` requests, and no more than the
    largest of the architecture's `batch_sizes`. A download with fewer than `fetch_least_rate` bytes per
    second for `fetch_patience` stops, and goes on later. The replaced model stays in host memory if it has
    at most `standby_bytes`. `artifact_keys` and `release_keys` are the accepted public keys (PEM, several
    one after the other), given here or in the files; only with `insecure_unsigned`, which is for development,
    nothing needs a signature.
    """

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_RUNTIME_", env_ignore_empty=True)

    model: Name
    environment: Name
    cohort: Cohort
    instance_id: Name
    device: Literal["cpu", "cuda"] = "cpu"
    architectures: str = ""

    data_host: str = "127.0.0.1"
    data_port: int = Field(default=8080, ge=0, le=65535)
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(default=8081, ge=0, le=65535)
    live_host: str = "127.0.0.1"
    live_port: int = Field(default=8082, ge=0, le=65535)
    stall_limit: float = Field(default=60.0, gt=0)
    admin_token: SecretStr = Field(min_length=8)
    metrics_token: SecretStr | None = Field(default=None, min_length=8)

    registry_url: str = "http://127.0.0.1:8070"
    registry_token: SecretStr = SecretStr("")
    registry_timeout: float = Field(default=5.0, gt=0)
    watch_wait: float = Field(default=20.0, gt=0, le=30)
    heartbeat: float = Field(default=1.0, gt=0)
    start_policy: StartPolicy = StartPolicy.TRUSTED_CACHE
    start_wait: float = Field(default=2.0, gt=0)

    cache_dir: Path = Path("/var/lib/weightshift/cache")
    cache_keep: int = Field(default=3, ge=2)
    max_artifact_bytes: int = Field(default=1 << 37, gt=0)
    fetch_least_rate: int = Field(default=64 << 10, ge=0)
    fetch_patience: float = Field(default=20.0, gt=0)
    artifact_keys: str = ""
    artifact_keys_file: Path | None = None
    release_keys: str = ""
    release_keys_file: Path | None = None
    insecure_unsigned: bool = False

    swap_mode: SwapMode = SwapMode.DOUBLE_BUFFER
    pause_limit: float = Field(default=2.0, gt=0)
    standby_bytes: int = Field(default=1 << 30, ge=0)
    memory_margin: int = Field(default=256 << 20, ge=0)

    max_queue: int = Field(default=256, gt=0)
    max_batch: int = Field(default=16, gt=0)
    max_sessions: int = Field(default=64, gt=0)
    session_deadline: float = Field(default=300.0, gt=0)
    max_body_bytes: int = Field(default=1 << 20, gt=0)
    body_timeout: float = Field(default=5.0, gt=0)
    answer_timeout: float = Field(default=30.0, gt=0)
    retry_after: int = Field(default=1, gt=0)

    propagation_seconds: float = Field(default=5.0, ge=0)
    drain_deadline: float = Field(default=20.0, gt=0)

    retry_initial: float = Field(default=0.25, gt=0)
    retry_maximum: float = Field(default=15.0, gt=0)

    @field_validator("metrics_token")
    @classmethod
    def _less_than_admin(cls, token: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if token is not None and token == info.data.get("admin_token"):
            raise ValueError("equals admin_token, which allows everything; give it one of its own")
        return token

    @property
    def service(self) -> Service:
        """The model and environment this instance belongs to."""
        return Service(model=self.model, environment=self.environment)

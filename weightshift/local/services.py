"""Our own processes: the registry, the worker and the runtimes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weightshift.contracts.identity import Cohort, Service
from weightshift.local.files import secret, write_private
from weightshift.local.keys import accepted_environment, authorisation_environment
from weightshift.local.ports import HOST
from weightshift.local.postgres import PostgresAddress
from weightshift.local.processes import ProcessSpec, answers, python_module
from weightshift.registry.migrate import migrate
from weightshift.registry.tokens import EVERY, Role, issue_token

LOST_AFTER = 2.0
_HEARTBEAT = 0.5
_SCRAPE_INTERVAL = 1.0
_CALIBRATION = 30.0

# As long as Envoy needs to notice that an instance is no longer ready.
_PROPAGATION_SECONDS = 0.75

# Two instances per cohort share the machine with everything else.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_CHANNELS = "WEIGHTSHIFT_NOTIFY_CHANNELS"
_CHANNELS_FILE = "WEIGHTSHIFT_NOTIFY_CHANNELS_FILE"

OPERATOR_TOKEN = "secrets/registry-operator"  # noqa: S105  (file names)
RUNTIME_TOKEN = "secrets/registry-runtime"  # noqa: S105
METRICS_TOKEN = "secrets/registry-metrics"  # noqa: S105
ADMIN_TOKEN = "secrets/runtime-admin"  # noqa: S105


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One runtime: what it serves as, and its data and admin ports."""

    name: str
    cohort: Cohort
    port: int
    admin_port: int


async def prepare_registry(directory: Path, database: PostgresAddress, service: Service) -> None:
    """Bring the database up to date and issue the tokens that are not there yet."""
    await migrate(owner_dsn=database.owner_dsn, application_role=database.application_role)
    for file, role, model, environment in (
        (OPERATOR_TOKEN, Role.OPERATOR, EVERY, EVERY),
        (RUNTIME_TOKEN, Role.RUNTIME, service.model, service.environment),
        (METRICS_TOKEN, Role.METRICS, EVERY, EVERY),
    ):
        if not (directory / file).exists():
            token = await issue_token(
                dsn=database.owner_dsn, role=role, subject="local", model=model, environment=environment
            )
            write_private(directory / file, token)


def registry_spec(directory: Path, database: PostgresAddress, port: int) -> ProcessSpec:
    """Describe the registry's HTTP service."""
    return ProcessSpec(
        name="registry",
        command=python_module("weightshift.registry.service"),
        environment={
            **authorisation_environment(directory),
            "WEIGHTSHIFT_REGISTRY_DSN": database.application_dsn,
            "WEIGHTSHIFT_REGISTRY_HOST": HOST,
            "WEIGHTSHIFT_REGISTRY_PORT": str(port),
            "WEIGHTSHIFT_REGISTRY_LOST_AFTER": str(LOST_AFTER),
            # One person tries everything here.
            "WEIGHTSHIFT_REGISTRY_PUSHER_MAY_APPROVE": "true",
        },
        ready=answers(port, "/healthz"),
    )


def worker_spec(environment: Mapping[str, str], metrics_port: int) -> ProcessSpec:
    """Describe the worker; `environment` names everything it talks to but the channels of notifications."""
    return ProcessSpec(
        name="worker",
        command=python_module("worker"),
        environment={
            **environment,
            **_channels(),
            "WEIGHTSHIFT_WORKER_METRICS_ADDRESS": f"{HOST}:{metrics_port}",
        },
        ready=answers(metrics_port, "/metrics"),
    )


def _channels() -> dict[str, str]:
    """Pass on the channels that whoever starts the stack has set; a path has to hold from elsewhere too."""
    inline, file = (os.environ.get(name) for name in (_CHANNELS, _CHANNELS_FILE))
    given = {_CHANNELS: inline, _CHANNELS_FILE: file and str(Path(file).absolute())}
    return {name: value for name, value in given.items() if value}


def runtime_spec(
    directory: Path, instance: Instance, service: Service, *, registry_url: str, store: Mapping[str, str]
) -> ProcessSpec:
    """Describe one runtime. It counts as started once its admin port answers, long before it is ready."""
    settings = {
        "MODEL": service.model,
        "ENVIRONMENT": service.environment,
        "COHORT": instance.cohort.value,
        "INSTANCE_ID": instance.name,
        "DATA_HOST": HOST,
        "DATA_PORT": str(instance.port),
        "ADMIN_HOST": HOST,
        "ADMIN_PORT": str(instance.admin_port),
        "LIVE_PORT": "0",
        "ADMIN_TOKEN": secret(directory / ADMIN_TOKEN),
        "REGISTRY_URL": registry_url,
        "REGISTRY_TOKEN": secret(directory / RUNTIME_TOKEN),
        "CACHE_DIR": str(directory / "cache" / instance.name),
        "HEARTBEAT": str(_HEARTBEAT),
        "PROPAGATION_SECONDS": str(_PROPAGATION_SECONDS),
    }
    return ProcessSpec(
        name=instance.name,
        command=python_module("runtime"),
        environment={
            **{f"WEIGHTSHIFT_RUNTIME_{key}": value for key, value in settings.items()},
            **accepted_environment(directory),
            **store,
            **_ONE_THREAD,
        },
        ready=answers(instance.admin_port, "/admin/status", statuses=(200, 401)),
        start_deadline=60.0,
        stop_deadline=15.0,
    )


def control_environment(
    directory: Path, database: PostgresAddress, *, registry_url: str, temporal: str, prometheus_url: str
) -> dict[str, str]:
    """Return the variables that point the worker and the command line at this stack."""
    return {
        "WEIGHTSHIFT_TEMPORAL_ADDRESS": temporal,
        "WEIGHTSHIFT_REGISTRY_DSN": database.application_dsn,
        "WEIGHTSHIFT_REGISTRY_URL": registry_url,
        "WEIGHTSHIFT_REGISTRY_TOKEN": secret(directory / OPERATOR_TOKEN),
        "WEIGHTSHIFT_REGISTRY_LOST_AFTER": str(LOST_AFTER),
        "WEIGHTSHIFT_REGISTRY_PUSHER_MAY_APPROVE": "true",
        "WEIGHTSHIFT_METRICS_PROMETHEUS_URL": prometheus_url,
        "WEIGHTSHIFT_METRICS_CALIBRATION": str(_CALIBRATION),
        "WEIGHTSHIFT_METRICS_SCRAPE_INTERVAL": str(_SCRAPE_INTERVAL),
    }

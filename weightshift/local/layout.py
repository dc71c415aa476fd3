"""Which processes a local stack consists of, on which ports, and in which order they start. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from weightshift.contracts.identity import Cohort
from weightshift.local import s3, temporal
from weightshift.local.addresses import Addresses
from weightshift.local.ports import HOST
from weightshift.local.services import Instance

_PORTS_BESIDE_INSTANCES = 7 + temporal.PORTS + s3.PORTS

DEPENDENCIES = {
    "registry": ("postgres",),
    "envoy": ("mesh-agent",),
    "worker": ("temporal", "registry", "s3", "mesh-agent", "prometheus"),
}
RUNTIME_DEPENDENCIES = ("registry", "s3")

STATEFUL = ("postgres", "temporal", "s3")
"""What everything else writes to, and what is therefore stopped last."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The ports of one stack, chosen once and kept while it is up."""

    postgres: int
    registry: int
    prometheus: int
    worker_metrics: int
    envoy: tuple[int, ...]
    temporal: tuple[int, ...]
    s3: tuple[int, ...]
    instances: tuple[Instance, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every process."""
        shared = (*STATEFUL, "registry", "mesh-agent", "envoy", "prometheus", "worker")
        return (*shared, *(instance.name for instance in self.instances))

    def dependencies(self, name: str) -> tuple[str, ...]:
        """What must be ready before a process is started."""
        runtimes = {instance.name for instance in self.instances}
        return RUNTIME_DEPENDENCIES if name in runtimes else DEPENDENCIES.get(name, ())

    def cohort(self, cohort: Cohort) -> tuple[Instance, ...]:
        """The instances of one cohort."""
        return tuple(instance for instance in self.instances if instance.cohort is cohort)

    @property
    def addresses(self) -> Addresses:
        """Where everything answers."""
        server = temporal.temporal_address(self.temporal)
        return Addresses(
            temporal=server.target,
            temporal_ui=server.ui_url,
            prometheus=_url(self.prometheus),
            envoy=_url(self.envoy[0]),
            envoy_admin=_url(self.envoy[1]),
            mesh_agent=_url(self.envoy[2]),
            s3=_url(self.s3[0]),
            registry=_url(self.registry),
            worker_metrics=_url(self.worker_metrics),
            runtimes={instance.name: _url(instance.port) for instance in self.instances},
            runtime_admins={instance.name: _url(instance.admin_port) for instance in self.instances},
        )


def choose_layout(instances_per_cohort: int, choose: Callable[[int], Sequence[int]]) -> Layout:
    """Give every process of a stack its ports, from as many as `choose` is asked for."""
    members = [(cohort, number) for cohort in Cohort for number in range(instances_per_cohort)]
    ports = iter(choose(_PORTS_BESIDE_INSTANCES + 2 * len(members)))
    return Layout(
        postgres=next(ports),
        registry=next(ports),
        prometheus=next(ports),
        worker_metrics=next(ports),
        envoy=tuple(islice(ports, 3)),
        temporal=tuple(islice(ports, temporal.PORTS)),
        s3=tuple(islice(ports, s3.PORTS)),
        instances=tuple(
            Instance(name=f"{cohort}-{number}", cohort=cohort, port=next(ports), admin_port=next(ports))
            for cohort, number in members
        ),
    )


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"

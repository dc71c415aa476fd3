"""What the registry tells Prometheus: incidents, and how far the fleet is from what is desired."""

from enum import StrEnum

from weightshift.contracts.base import Message
from weightshift.contracts.identity import Cohort, Service


class Incident(StrEnum):
    """Something an operator should hear of, counted per service."""

    PUBLISH_CONFLICT = "publish-conflict"
    STALE_FENCE = "stale-fence"
    REVISION_REUSED = "revision-reused"
    REJECTED_IN_USE = "rejected-in-use"


class IncidentCount(Message):
    """How often an incident happened to a service since the registry exists."""

    service: Service
    incident: Incident
    count: int


class CohortHealth(Message):
    """How many instances of a cohort report, are lost, and do not serve what has been desired for long."""

    service: Service
    cohort: Cohort
    reporting: int
    lost: int
    mismatched: int


class RegistryHealth(Message):
    """Everything at one moment. `services` are all that were ever released or reported."""

    services: tuple[Service, ...] = ()
    incidents: tuple[IncidentCount, ...] = ()
    cohorts: tuple[CohortHealth, ...] = ()

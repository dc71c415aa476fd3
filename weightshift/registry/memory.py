"""The registry in memory: the same promises as the database, for tests and trials in one process."""

from weightshift.registry.in_memory.artifacts import MemoryArtifacts
from weightshift.registry.in_memory.audit import MemoryAudit
from weightshift.registry.in_memory.fleet import MemoryFleet
from weightshift.registry.in_memory.releases import MemoryReleases
from weightshift.registry.in_memory.targets import MemoryTargets
from weightshift.registry.in_memory.waves import MemoryWaves


class MemoryRegistry(MemoryArtifacts, MemoryTargets, MemoryReleases, MemoryWaves, MemoryFleet, MemoryAudit):
    """A `Registry` that lives as long as the object.

    Set `available` to False to take the registry away: every method then raises `RegistryUnreachable`.
    `bell` rings on every publication. Unlike the database's, its default policy lets whoever pushed an
    artifact approve it alone.
    """

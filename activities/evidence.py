"""Recording a release's evidence in the audit chain.

Evidence has no activity of its own: it travels with the next command that goes to the registry anyway, so
that a release leaves a short history. A row that is sent twice is recognised by its operation id.
"""

from collections.abc import Sequence

from weightshift.contracts.evidence import Evidence
from weightshift.registry.base import Registry


async def record_evidence(registry: Registry, rows: Sequence[Evidence]) -> None:
    """Append the rows in order. Raises `RegistryUnreachable`."""
    for row in rows:
        await registry.record_evidence(row)

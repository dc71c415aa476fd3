"""The audit chains."""

from weightshift.contracts.evidence import AuditHead, AuditQuery, AuditRow, Evidence, Refusal
from weightshift.contracts.identity import Service
from weightshift.registry.chain import Entry, head_of, selects
from weightshift.registry.in_memory.state import MemoryState
from weightshift.registry.pages import read_all


class MemoryAudit(MemoryState):
    """Records and reads the chains."""

    async def record_evidence(self, evidence: Evidence) -> None:
        """Append a row to the audit chain; a repeat of the operation id is a no-op."""
        self._check_available()
        if not self._find(evidence.service.environment, evidence.operation_id):
            self._append(Entry.of_evidence(evidence))

    async def record_refusal(self, refusal: Refusal) -> None:
        """Append a refused request to the chain that holds them."""
        self._check_available()
        self._append(Entry.of_refusal(refusal))

    async def audit(self, service: Service, *, release_id: str | None = None) -> tuple[AuditRow, ...]:
        """Read all audit rows of a service, oldest first."""
        query = AuditQuery(environment=service.environment, model=service.model, release_id=release_id)
        return await read_all(self.audit_page, query)

    async def audit_page(self, query: AuditQuery) -> tuple[AuditRow, ...]:
        """Read the first rows that a query selects, oldest first."""
        self._check_available()
        rows = [row for row in self._chains.get(query.environment, []) if selects(query, row)]
        return tuple(rows[: query.limit])

    async def audit_head(self, environment: str) -> AuditHead:
        """Read the place and the hash of a chain's newest row."""
        self._check_available()
        chain = self._chains.get(environment, [])
        return head_of(environment, chain[-1] if chain else None)

"""Walking a whole audit chain in search of a row that was changed, cut out or put in."""

from weightshift.contracts.evidence import AuditHead, AuditQuery
from weightshift.errors import InvalidInput
from weightshift.registry.chain import ChainBreak, first_break, head_of
from weightshift.registry.pages import ReadPage, pages


async def verify_chain(
    read_page: ReadPage, environment: str, *, known: AuditHead | None = None
) -> AuditHead | ChainBreak:
    """Return the chain's head, or its first broken row; reads one page at a time.

    `known` is a head exported earlier: without one, a chain that was cut at its end or rewritten from
    some row on looks whole. Raises `InvalidInput` when it is another chain's.
    """
    if known and known.environment != environment:
        raise InvalidInput(f"The exported head is of {known.environment}, not of {environment}; use its own.")
    head = head_of(environment, None)
    async for page in pages(read_page, AuditQuery(environment=environment, limit=1_000)):
        broken = first_break(page, after=head)
        if broken is not None:
            return broken
        if known and any(row.sequence == known.sequence and row.hash != known.hash for row in page):
            return ChainBreak(sequence=known.sequence, problem="it is not the one that was exported")
        head = head_of(environment, page[-1]) if page else head
    if known and head.sequence < known.sequence:
        return ChainBreak(sequence=head.sequence + 1, problem="it is missing, with everything after it")
    return head

"""Reading a whole audit chain, one bounded page at a time."""

from collections.abc import AsyncIterator, Awaitable, Callable

from weightshift.contracts.evidence import AuditQuery, AuditRow

ReadPage = Callable[[AuditQuery], Awaitable[tuple[AuditRow, ...]]]


async def pages(read_page: ReadPage, query: AuditQuery) -> AsyncIterator[tuple[AuditRow, ...]]:
    """Yield the pages a query selects, oldest first, until there is no more."""
    while True:
        page = await read_page(query)
        yield page
        if len(page) < query.limit:
            return
        query = query.model_copy(update={"after": page[-1].sequence})


async def read_all(read_page: ReadPage, query: AuditQuery) -> tuple[AuditRow, ...]:
    """Return every row a query selects, oldest first."""
    return tuple([row async for page in pages(read_page, query) for row in page])

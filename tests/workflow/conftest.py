"""The real workflow and activities on the time-skipping server, over in-memory twins of our seams."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.workflow.harness import Harness, time_skipping_server


@pytest_asyncio.fixture(loop_scope="session")
async def harness() -> AsyncIterator[Harness]:
    """A service on which v41 is released and v42 and v43 are ready."""
    async with time_skipping_server() as environment, Harness(environment).running() as one:
        yield one

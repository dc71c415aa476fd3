from collections.abc import AsyncIterator

import pytest_asyncio
import torch

from weightshift.local.live_service import LiveService, live_service

# Models are built here beside a whole stack: more threads than cores would only get in its way.
torch.set_num_threads(1)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def live(tmp_path_factory) -> AsyncIterator[LiveService]:  # type: ignore[no-untyped-def]
    """One stack for all faults of a module: each test leaves stable serving and every process running."""
    async with live_service(tmp_path_factory.mktemp("faults")) as service:
        yield service

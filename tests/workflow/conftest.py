"""The real workflow and activities on the time-skipping server, over in-memory twins of our seams."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from tests.workflow.harness import ATTRIBUTES, Harness


@pytest_asyncio.fixture(loop_scope="session")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    """A time-skipping server, from the installed package, never downloaded.

    One for each test: an activity that its workflow left behind stops the skipping for good.
    """
    async with await WorkflowEnvironment.start_time_skipping(
        data_converter=pydantic_data_converter,
        test_server_existing_path=str(Path(sys.executable).parent / "temporal-test-server"),
    ) as environment:
        keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
        await environment.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=environment.client.namespace,
                search_attributes=dict.fromkeys(ATTRIBUTES, keyword),
            )
        )
        yield environment


@pytest_asyncio.fixture(loop_scope="session")
async def harness(temporal: WorkflowEnvironment) -> AsyncIterator[Harness]:
    """A service on which v41 is released and v42 and v43 are ready."""
    one = Harness(temporal)
    async with contextlib.AsyncExitStack() as stack:
        for worker in one.workers(temporal.client):
            await stack.enter_async_context(worker)
        fleet = asyncio.create_task(one.fleet.run())
        stack.callback(fleet.cancel)
        for artifact_id in ("v41", "v42", "v43"):
            await one.artifact(artifact_id)
        await one.fleet.follow()
        first = await one.release("v41")
        assert first.outcome == "promoted"
        yield one

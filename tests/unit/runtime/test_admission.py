import asyncio

import pytest

from runtime.admission import Admission
from weightshift.errors import NotServing

LONG = 600.0


async def test_requests_are_taken_until_nobody_sends_any_more_and_then_awaited() -> None:
    admission = Admission()
    admission.enter()
    drain = asyncio.create_task(admission.drain(propagation_seconds=0, deadline=LONG))
    while True:
        try:
            admission.enter()
        except NotServing:
            break
        admission.leave()
        await asyncio.sleep(0)
    assert not drain.done()
    admission.leave()
    assert await drain


async def test_the_deadline_ends_the_waiting() -> None:
    admission = Admission()
    admission.enter()
    assert not await admission.drain(propagation_seconds=0, deadline=0.01)


async def test_a_hurry_ends_both_kinds_of_waiting() -> None:
    admission = Admission()
    admission.enter()
    drain = asyncio.create_task(admission.drain(propagation_seconds=LONG, deadline=LONG))
    await asyncio.sleep(0)
    admission.enter()
    admission.hurry()
    assert not await asyncio.wait_for(drain, 10)
    with pytest.raises(NotServing):
        admission.enter()

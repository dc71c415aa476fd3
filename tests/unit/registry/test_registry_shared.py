import asyncio

from weightshift.errors import RegistryUnreachable
from weightshift.registry.shared import Shared


async def test_questions_at_the_same_moment_share_one_read() -> None:
    reads = 0

    async def read(_: str) -> int:
        nonlocal reads
        reads += 1
        return 7

    shared = Shared(read)
    await asyncio.gather(*(shared.get("ranker") for _ in range(100)))
    assert reads == 1


async def test_a_question_is_not_answered_by_a_read_that_had_begun_before() -> None:
    begun, finish = asyncio.Event(), asyncio.Event()
    answers = [1, 2]

    async def read(_: str) -> int:
        answer = answers.pop(0)
        begun.set()
        await finish.wait()
        return answer

    shared = Shared(read)
    first = asyncio.create_task(shared.get("ranker"))
    await begun.wait()
    second = asyncio.create_task(shared.get("ranker"))
    await asyncio.sleep(0)
    finish.set()
    assert [*await asyncio.gather(first, second)] == [1, 2]


async def test_a_failed_read_fails_for_everybody_who_shares_it_and_for_nobody_else() -> None:
    failures = [RegistryUnreachable()]

    async def read(_: str) -> int:
        if failures:
            raise failures.pop()
        return 7

    shared = Shared(read)
    results = await asyncio.gather(*(shared.get("ranker") for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [RegistryUnreachable] * 3
    assert await shared.get("ranker") == 7


async def test_one_who_goes_away_takes_the_read_from_nobody() -> None:
    finish = asyncio.Event()

    async def read(_: str) -> int:
        await finish.wait()
        return 7

    shared = Shared(read)
    leaving, staying = (asyncio.create_task(shared.get("ranker")) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    finish.set()
    assert await staying == 7
    assert leaving.cancelled()

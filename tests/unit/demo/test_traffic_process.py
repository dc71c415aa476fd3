import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from weightshift.errors import LocalStackError
from weightshift.local.traffic_process import Figures, TrafficProcess

BODY = '{"items":[{"index":0,"score":1.0}]}'
ANSWER = (
    f"HTTP/1.1 200 OK\r\nx-weightshift-artifact: v1\r\ncontent-length: {len(BODY)}\r\n\r\n{BODY}".encode()
)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(ANSWER)
    except asyncio.IncompleteReadError:
        writer.close()


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/predict"


@pytest.fixture
def expectations(tmp_path: Path) -> Path:
    path = tmp_path / "expectations.json"
    path.write_text(json.dumps({"bodies": [{}], "answers": {"v1": [json.loads(BODY)["items"]]}}))
    return path


async def test_figures_arrive_while_it_runs_and_at_the_end(url: str, expectations: Path) -> None:
    seen: list[Figures] = []
    async with TrafficProcess(
        url=url, expectations=expectations, seconds=30, rate=100, on_figures=seen.append
    ) as traffic:
        await traffic.allow("v1")
        await traffic.wait_for(lambda figures: "v1" in figures["artifacts"], seconds=20)
        final = await traffic.stop()
    assert final["final"]
    assert final["failed"] == 0
    assert final["requests"] >= seen[0]["requests"]
    assert seen[-1] == final


async def test_an_unmet_condition_fails_with_the_last_figures(url: str, expectations: Path) -> None:
    async with TrafficProcess(
        url=url, expectations=expectations, seconds=30, rate=100, on_figures=lambda _: None
    ) as traffic:
        await traffic.wait_for(lambda _: True, seconds=20)
        with pytest.raises(LocalStackError, match="'requests'"):
            await traffic.wait_for(lambda figures: "v1" in figures["artifacts"], seconds=0.01)


async def test_leaving_the_block_early_ends_the_process(url: str, expectations: Path) -> None:
    traffic = TrafficProcess(
        url=url, expectations=expectations, seconds=30, rate=100, on_figures=lambda _: None
    )
    async with traffic:
        process = traffic._running()
    assert process.returncode is not None


async def test_it_runs_only_inside_its_block(expectations: Path) -> None:
    traffic = TrafficProcess(
        url="http://127.0.0.1:1/", expectations=expectations, seconds=1, rate=1, on_figures=lambda _: None
    )
    with pytest.raises(LocalStackError, match="async with"):
        await traffic.allow("v1")

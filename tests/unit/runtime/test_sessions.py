"""Streaming through the example decoder: swaps, deadlines, disconnects, and what is freed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime.decoder import Decoder, DecoderState
from runtime.decoder_network import DecoderNetwork
from runtime.instance import Instance
from runtime.streaming import Step
from tests.unit.runtime.streaming_harness import DEADLINE, Client, Gate

CONFIG = {"layers": 2, "heads": 2, "width": 16}


def weights(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    state = DecoderNetwork(**CONFIG).state_dict()
    return {name: value.clone() for name, value in state.items() if name != "head.weight"}


def push(artifacts: Any, artifact_id: str, seed: int) -> Any:
    return artifacts.push(
        artifact_id,
        weights=weights(seed),
        architecture="decoder",
        feature_schema="bytes-v1",
        files={"config.json": json.dumps(CONFIG).encode(), "normalisation.json": None},
    )


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@asynccontextmanager
async def serving(world: Any, artifacts: Any, **settings: Any) -> AsyncIterator[Instance]:
    await world.publish(push(artifacts, "v1", 1))
    async with world.running(**settings) as instance:
        await world.until(world.serving(instance, 1))
        yield instance


async def test_tokens_then_done_and_every_reference_returned(world: Any, artifacts: Any) -> None:
    async with serving(world, artifacts) as instance:
        client = Client(instance, {"prompt": "hello", "max_tokens": 20})
        tokens = await client.finished()
        assert client.status == 200
        assert client.headers["content-type"] == "text/event-stream"
        assert client.headers["x-weightshift-artifact"] == "v1"
        assert len(tokens) == 20
        assert client.events[-1] == ("done", {})
        assert instance.holder.current is not None
        assert instance.holder.current.references == 0
        assert instance.sessions.active == 0
        assert "weightshift_sessions_active" in (await instance.render_metrics()).decode()


async def test_the_cache_changes_nothing_about_the_answer(world: Any, artifacts: Any) -> None:
    async with serving(world, artifacts) as instance:
        tokens = await Client(instance, {"prompt": "hello", "max_tokens": 30}).finished()
        assert instance.holder.current is not None
        network = instance.holder.current.loaded.module
    text = list(b"hello")
    with torch.inference_mode():
        for token in tokens:
            logits = network(torch.tensor([text]))[0, -1]
            assert logits[token] == pytest.approx(float(logits.max()), abs=1e-5)
            text.append(token)


async def test_a_swap_in_the_middle_changes_no_token(world: Any, artifacts: Any, gate: Gate) -> None:
    body = {"prompt": "the quick brown fox", "max_tokens": 40, "temperature": 1.0, "seed": 7}
    async with serving(world, artifacts) as instance:
        gate.permits.release(40)
        undisturbed = await Client(instance, body).finished()
        client = Client(instance, body)
        gate.permits.release(10)
        await client.until(lambda: len(client.events) == 10)
        old = instance.holder.current
        await world.publish(push(artifacts, "v2", 2))
        await world.until(world.serving(instance, 2))
        assert old is not None
        assert (old.retired, old.references) == (True, 1)
        newer = Client(instance, body)
        gate.permits.release(70)
        assert await client.finished() == undisturbed
        assert await newer.finished() != undisturbed
        assert client.headers["x-weightshift-revision"] == "1"
        assert newer.headers["x-weightshift-revision"] == "2"
        await world.until(lambda: len(instance.holder.resident) == 1)
        await world.until(gate.all_freed)


async def test_samples_share_nothing_and_give_everything_back(world: Any, artifacts: Any, gate: Gate) -> None:
    body = {"prompt": "x", "max_tokens": 12, "samples": 3, "temperature": 10.0}
    async with serving(world, artifacts) as instance:
        gate.permits.release(100)
        client = Client(instance, body)
        await client.finished()
        by_sample = [
            [data["token"] for kind, data in client.events if kind == "token" and data["sample"] == number]
            for number in range(3)
        ]
        assert [len(tokens) for tokens in by_sample] == [12, 12, 12]
        assert len({tuple(tokens) for tokens in by_sample}) == 3
        alone = await Client(instance, {**body, "samples": 1, "seed": 2}).finished()
        assert alone == by_sample[2]
        assert instance.holder.current is not None
        assert instance.holder.current.references == 0
        await world.until(gate.all_freed)


async def test_a_client_that_leaves_frees_its_cache(world: Any, artifacts: Any, gate: Gate) -> None:
    async with serving(world, artifacts) as instance:
        client = Client(instance, {"prompt": "x", "max_tokens": 100})
        gate.permits.release(3)
        await client.until(lambda: len(client.events) == 3)
        client.leave()
        await asyncio.wait_for(client.task, DEADLINE)
        gate.permits.release(1)
        current = instance.holder.current
        assert current is not None
        await world.until(lambda: current.references == 0 and instance.sessions.active == 0)
        await world.until(gate.all_freed)
        assert len(client.events) == 3


async def test_the_deadline_after_a_swap_ends_a_session_with_a_typed_event(
    world: Any, artifacts: Any, gate: Gate
) -> None:
    async with serving(world, artifacts, session_deadline=0.001) as instance:
        client = Client(instance, {"prompt": "x", "max_tokens": 100})
        gate.permits.release(2)
        await client.until(lambda: len(client.events) == 2)
        await world.publish(push(artifacts, "v2", 2))
        await world.until(world.serving(instance, 2))
        gate.permits.release(100)
        await client.finished()
        kind, reason = client.events[-1]
        assert (kind, reason["type"]) == ("error", "SessionEnded")
        await world.until(lambda: len(instance.holder.resident) == 1)


async def test_a_stop_ends_sessions_with_a_typed_event(world: Any, artifacts: Any, gate: Gate) -> None:
    async with serving(world, artifacts) as instance:
        client = Client(instance, {"prompt": "x", "max_tokens": 100})
        gate.permits.release(1)
        await client.until(lambda: len(client.events) == 1)
        instance.sessions.end()
        gate.permits.release(1)
        await client.finished()
        assert client.events[-1][1]["type"] == "SessionEnded"
        refused = Client(instance, {"prompt": "x"})
        await refused.finished()
        assert refused.status == 503


async def test_a_quiet_stream_gets_comments(world: Any, artifacts: Any, gate: Gate) -> None:
    async with serving(world, artifacts) as instance:
        client = Client(instance, {"prompt": "x", "max_tokens": 1}, comment_seconds=0.001)
        await client.until(lambda: client.comments > 2)
        gate.permits.release(1)
        assert len(await client.finished()) == 1


async def test_sessions_have_a_bound(world: Any, artifacts: Any, gate: Gate) -> None:
    async with serving(world, artifacts, max_sessions=1) as instance:
        first = Client(instance, {"prompt": "x", "max_tokens": 1})
        await first.until(lambda: first.status == 200)
        second = Client(instance, {"prompt": "x"})
        await second.finished()
        assert second.status == 503
        assert second.headers["retry-after"] == "1"
        gate.permits.release(1)
        await first.finished()


async def test_a_stream_that_a_pause_holds_beyond_its_time_counts_against_what_serves(
    world: Any, artifacts: Any
) -> None:
    async with serving(world, artifacts, answer_timeout=0.05) as instance:
        async with instance.gate.paused():
            client = Client(instance, {"prompt": "x"})
            await asyncio.wait_for(client.task, DEADLINE)
        assert client.status == 504
        labels = {"model": "ranker", "environment": "test", "cohort": "stable", "artifact": "v1"}
        found = [
            sample.value
            for family in instance.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "weightshift_requests_total"
            and {**labels, "code": "504"}.items() <= sample.labels.items()
        ]
        assert found == [1]


async def test_a_failing_step_ends_only_its_own_session(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(world, artifacts) as instance:
        step = Decoder.step

        def fail(decoder: Decoder, model: Any, state: DecoderState) -> Step:
            if state.prompt.seed == 13:
                raise RuntimeError("/secret/path")
            return step(decoder, model, state)

        monkeypatch.setattr(Decoder, "step", fail)
        bad, good = Client(instance, {"prompt": "x", "seed": 13}), Client(instance, {"prompt": "x"})
        assert len(await good.finished()) == 16
        await bad.finished()
        assert bad.events[-1][0] == "error"
        assert b"secret" not in bad.raw
        assert instance.is_live
        assert instance.holder.current is not None
        assert instance.holder.current.references == 0


async def test_a_session_that_finds_no_memory_says_so_and_lets_the_instance_rest(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(world, artifacts) as instance:

        def fail(decoder: Decoder, model: Any, state: DecoderState) -> Step:
            raise torch.OutOfMemoryError("no room")

        monkeypatch.setattr(Decoder, "step", fail)
        client = Client(instance, {"prompt": "x"})
        await client.finished()
        assert client.events[-1][1]["type"] == "MemoryExhausted"
        assert not instance.is_ready
        assert instance.is_live


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "does not fit"),
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "ä" * 100}, "bytes"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "samples": 9}, "samples"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "other": 1}, "other"),
    ],
)
async def test_bad_requests_are_refused(world: Any, artifacts: Any, body: object, words: str) -> None:
    async with serving(world, artifacts) as instance, world.data_client(instance) as client:
        for path in ("/generate", "/predict"):
            answer = await client.post(path, json=body)
            assert answer.status_code == 400
            assert words in answer.json()["error"]["message"]
        assert instance.holder.current is not None
        assert instance.holder.current.references == 0


async def test_predict_gives_the_byte_that_generate_says_first(world: Any, artifacts: Any) -> None:
    async with serving(world, artifacts) as instance, world.data_client(instance) as client:
        answer = await client.post("/predict", json={"prompt": "hello"})
        (token,) = await Client(instance, {"prompt": "hello", "max_tokens": 1}).finished()
        assert answer.json()["next"][0]["token"] == token


async def test_a_full_context_ends_an_answer(world: Any, artifacts: Any) -> None:
    async with serving(world, artifacts) as instance:
        assert len(await Client(instance, {"prompt": "x" * 126, "max_tokens": 100}).finished()) == 3


async def test_a_model_that_does_not_stream_says_so(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        answer = await client.post("/generate", json={})
        assert answer.status_code == 400
        assert "does not stream" in answer.text
        assert instance.holder.current is not None
        assert instance.holder.current.references == 0

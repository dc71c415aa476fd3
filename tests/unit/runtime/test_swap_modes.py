"""How a candidate takes over: beside what serves, over it, or not at all."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import in_place
from runtime.architectures import Ranker
from runtime.execution import forward
from runtime.generation_holder import LoadedModel
from runtime.instance import Instance
from tests.unit.runtime.streaming_harness import Client, Gate
from tests.unit.runtime.test_sessions import push as push_decoder
from weightshift.contracts.manifest import Manifest
from weightshift.errors import DryRunFailed

BODY = json.dumps({"context": [0.5] * 8, "candidates": [[0.25] * 80, [1.0] * 80]}).encode()
ROWS = torch.linspace(-1, 1, 88).reshape(1, 88)
BUDGET = 1 << 30
LONG = 30.0


def scores(instance: Instance) -> torch.Tensor:
    current = instance.holder.current
    assert current is not None
    return forward(current.loaded, [ROWS])[0]


def addresses(loaded: LoadedModel) -> list[int]:
    return [tensor.data_ptr() for tensor in loaded.module.state_dict().values()]


async def failed(world: Any, name: str) -> Any:
    """Wait until the candidate has failed with this error; return it."""

    async def has_failed() -> bool:
        report = await world.report()
        error = report.candidate.error if report and report.candidate else None
        return error is not None and error.type == name

    await world.until(has_failed)
    return (await world.report()).candidate.error


async def test_in_place_the_new_weights_have_the_old_addresses(world: Any, artifacts: Any) -> None:
    first, second = artifacts.push("v1"), artifacts.push("v2", seed=2)
    await world.publish(first)
    async with world.running(swap_mode="in-place", standby_bytes=BUDGET) as instance:
        await world.until(world.serving(instance, 1))
        storage, old_scores = addresses(instance.holder.current.loaded), scores(instance)
        await world.publish(second)
        await world.until(world.serving(instance, 2))
        assert addresses(instance.holder.current.loaded) == storage
        new_scores = scores(instance)
        assert not torch.equal(new_scores, old_scores)
        await world.until(lambda: instance.tiers()[first.digest()].place == "host")
        world.store.objects.clear()
        await world.publish(first)
        await world.until(world.serving(instance, 3))
        assert addresses(instance.holder.current.loaded) == storage
        assert torch.equal(scores(instance), old_scores)
        await world.until(lambda: instance.tiers()[second.digest()].place == "host")


async def test_in_place_equals_a_model_loaded_beside(world: Any, artifacts: Any) -> None:
    second = artifacts.push("v2", seed=2)
    await world.publish(artifacts.push("v1"))
    async with world.running(swap_mode="in-place") as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(second)
        await world.until(world.serving(instance, 2))
        swapped = scores(instance)
    async with world.running(instance_id="fresh") as instance:
        await world.until(world.serving(instance, 2))
        assert torch.equal(scores(instance), swapped)


async def test_what_the_small_files_say_belongs_to_the_candidate(world: Any, artifacts: Any) -> None:
    shifted = json.dumps({"mean": [1.0] * 88, "std": [2.0] * 88}).encode()
    await world.publish(artifacts.push("v1"))
    async with world.running(swap_mode="in-place") as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", files={"normalisation.json": shifted}))
        await world.until(world.serving(instance, 2))
        assert float(instance.holder.current.loaded.resources.std[0]) == 2.0


async def test_other_shapes_are_loaded_beside(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running(swap_mode="in-place") as instance:
        await world.until(world.serving(instance, 1))
        storage = addresses(instance.holder.current.loaded)
        wider = artifacts.push(
            "v2", weights=artifacts.weights(2, (16, 4)), files={"config.json": b'{"hidden": [16, 4]}'}
        )
        await world.publish(wider)
        await world.until(world.serving(instance, 2))
        assert addresses(instance.holder.current.loaded) != storage
        assert instance.gate.last_seconds is None


class Traffic:
    """Clients that send one request after the other and remember every answer."""

    def __init__(self, client: Any) -> None:
        self.answers: list[Any] = []
        self._client = client
        self._stopping = False

    async def run(self) -> None:
        while not self._stopping:
            self.answers.append(await self._client.post("/predict", content=BODY))

    def revisions(self) -> list[str]:
        return [answer.headers["x-weightshift-revision"] for answer in self.answers]

    async def __aenter__(self) -> "Traffic":
        self._tasks = [asyncio.create_task(self.run()) for _ in range(6)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)


async def test_under_load_no_request_fails_and_each_gets_the_weights_it_names(
    world: Any, artifacts: Any
) -> None:
    manifests: list[Manifest] = [artifacts.push("v1"), artifacts.push("v2", seed=2)]
    await world.publish(manifests[0])
    async with (
        world.running(swap_mode="in-place", standby_bytes=BUDGET) as instance,
        world.data_client(instance) as client,
    ):
        await world.until(world.serving(instance, 1))
        async with Traffic(client) as traffic:
            for revision in range(2, 8):
                await world.publish(manifests[(revision - 1) % 2])
                await world.until(world.serving(instance, revision))
                seen = len(traffic.answers)
                await world.until(lambda seen=seen: len(traffic.answers) > seen + 10)
        exposition = (await instance.render_metrics()).decode()
    assert {answer.status_code for answer in traffic.answers} == {200}
    by_artifact: dict[str, set[bytes]] = {}
    for answer in traffic.answers:
        by_artifact.setdefault(answer.headers["x-weightshift-artifact"], set()).add(answer.content)
    assert {len(contents) for contents in by_artifact.values()} == {1}
    assert len(set.union(*by_artifact.values())) == 2
    assert set(traffic.revisions()) == {str(revision) for revision in range(1, 8)}
    assert (
        'weightshift_admission_pause_seconds_count{cohort="stable",environment="test",model="ranker"} 6'
        in (exposition)
    )


@pytest.fixture
def dry_runs(monkeypatch: pytest.MonkeyPatch) -> "DryRuns":
    return DryRuns(monkeypatch)


class DryRuns:
    """Holds candidates back in their dry-run, or fails them there, from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.gate = threading.Event(), threading.Event()
        self.fails = False
        self._monkeypatch = monkeypatch

    def arm(self) -> None:
        samples = Ranker.samples

        def held(ranker: Ranker, resources: Any) -> Any:
            self.reached.set()
            assert self.gate.wait(LONG)
            if self.fails:
                raise DryRunFailed("as the test wants")
            return samples(ranker, resources)

        self._monkeypatch.setattr(Ranker, "samples", held)


@pytest.mark.parametrize("fails", [False, True])
async def test_requests_wait_for_the_dry_run_and_are_served_then(
    world: Any, artifacts: Any, dry_runs: DryRuns, *, fails: bool
) -> None:
    await world.publish(artifacts.push("v1"))
    async with (
        world.running(swap_mode="in-place", pause_limit=LONG) as instance,
        world.data_client(instance) as client,
    ):
        await world.until(world.serving(instance, 1))
        before = scores(instance)
        dry_runs.fails = fails
        dry_runs.arm()
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(dry_runs.reached.is_set)
        requests = [asyncio.create_task(client.post("/predict", content=BODY)) for _ in range(5)]
        await world.until(lambda: instance.gate.waiting == 5)
        assert instance.queue_length == 5
        assert instance.is_ready
        dry_runs.gate.set()
        answers = await asyncio.gather(*requests)
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.headers["x-weightshift-revision"] for answer in answers} == {"1" if fails else "2"}
        assert torch.equal(scores(instance), before) is fails
        if fails:
            assert (await failed(world, "DryRunFailed")).permanent
        assert instance.gate.last_seconds > 0


async def test_a_pause_has_room_for_so_many_requests(world: Any, artifacts: Any, dry_runs: DryRuns) -> None:
    await world.publish(artifacts.push("v1"))
    async with (
        world.running(swap_mode="in-place", pause_limit=LONG, max_queue=2) as instance,
        world.data_client(instance) as client,
    ):
        await world.until(world.serving(instance, 1))
        dry_runs.arm()
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(dry_runs.reached.is_set)
        waiting = [asyncio.create_task(client.post("/predict", content=BODY)) for _ in range(2)]
        await world.until(lambda: instance.gate.waiting == 2)
        refused = await client.post("/predict", content=BODY)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        dry_runs.gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}


async def test_a_dry_run_that_takes_too_long_is_undone_and_tried_again(
    world: Any, artifacts: Any, dry_runs: DryRuns
) -> None:
    await world.publish(artifacts.push("v1"))
    async with (
        world.running(swap_mode="in-place", pause_limit=0.05) as instance,
        world.data_client(instance) as client,
    ):
        await world.until(world.serving(instance, 1))
        before = scores(instance)
        dry_runs.arm()
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(dry_runs.reached.is_set)
        await asyncio.sleep(0.06)
        dry_runs.gate.set()
        assert not (await failed(world, "SwapTooSlow")).permanent
        await world.until(world.serving(instance, 2))
        assert not torch.equal(scores(instance), before)
        assert (await client.post("/predict", content=BODY)).status_code == 200


async def test_a_newer_target_during_the_swap_wins(world: Any, artifacts: Any, dry_runs: DryRuns) -> None:
    first = artifacts.push("v1")
    await world.publish(first)
    async with world.running(swap_mode="in-place", pause_limit=LONG) as instance:
        await world.until(world.serving(instance, 1))
        before = scores(instance)
        dry_runs.arm()
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(dry_runs.reached.is_set)
        await world.publish(first)
        await world.until(lambda: instance.report().desired_revision == 3)
        dry_runs.gate.set()
        await world.until(world.serving(instance, 3))
        assert torch.equal(scores(instance), before)


async def test_ending_in_the_middle_of_a_swap_leaves_whole_weights(
    world: Any, artifacts: Any, dry_runs: DryRuns
) -> None:
    await world.publish(artifacts.push("v1"))
    instance = world.create(swap_mode="in-place", pause_limit=LONG)
    instance.start()
    await world.until(world.serving(instance, 1))
    before = scores(instance)
    dry_runs.arm()
    await world.publish(artifacts.push("v2", seed=2))
    await world.until(dry_runs.reached.is_set)
    closing = asyncio.create_task(instance.close())
    await asyncio.sleep(0)
    dry_runs.gate.set()
    assert await closing
    assert torch.equal(scores(instance), before)


async def test_weights_that_cannot_be_put_back_take_the_instance_down(
    world: Any, artifacts: Any, dry_runs: DryRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running(swap_mode="in-place") as instance:
        await world.until(world.serving(instance, 1))
        dry_runs.fails = True
        dry_runs.gate.set()
        dry_runs.arm()

        def fail(*_: object) -> None:
            raise torch.AcceleratorError("gone")

        monkeypatch.setattr(in_place.Exchange, "undo", refusing(fail, in_place.Exchange.undo))
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(lambda: not instance.is_live)
        assert not instance.is_ready


def refusing(fail: Callable[..., None], undo: Callable[..., None]) -> Callable[..., None]:
    """Let the copying inside an undo fail."""

    def undone(exchange: Any) -> None:
        exchange._copy = fail
        undo(exchange)

    return undone


async def test_sessions_on_the_replaced_weights_get_a_typed_end(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    await world.publish(push_decoder(artifacts, "v1", 1))
    async with world.running(swap_mode="in-place") as instance:
        await world.until(world.serving(instance, 1))
        client = Client(instance, {"prompt": "hello", "max_tokens": 50})
        gate.permits.release(3)
        await client.until(lambda: len(client.events) == 3)
        await world.publish(push_decoder(artifacts, "v2", 2))
        await world.until(lambda: instance.gate.is_paused)
        gate.permits.release(47)
        await client.finished()
        assert client.events[-1][0] == "error"
        assert client.events[-1][1]["type"] == "SessionEnded"
        await world.until(world.serving(instance, 2))
        assert gate.all_freed()
        later = Client(instance, {"prompt": "hello", "max_tokens": 5})
        gate.permits.release(50)
        assert len(await later.finished()) == 5


async def test_refuse_keeps_what_serves_until_a_restart(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running(swap_mode="refuse") as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", seed=2))
        error = await failed(world, "SwapRefused")
        assert error.permanent
        assert "restart" in error.message
        assert instance.is_ready
        assert instance.holder.current.revision == 1
    async with world.running(swap_mode="refuse") as instance:
        await world.until(world.serving(instance, 2))


async def test_without_room_for_both_the_figures_are_told(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        manifest = artifacts.push("v2", seed=2)
        instance._reconciler._preparer._margin = 1 << 60
        await world.publish(manifest)
        error = await failed(world, "OutOfMemory")
        assert "weights 5632" in error.message
        assert f"margin {1 << 60}" in error.message
        assert instance.is_ready

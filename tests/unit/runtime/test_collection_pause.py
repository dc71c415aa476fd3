"""Garbage collection and loads."""

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from runtime import candidate_preparer
from runtime.collection_pause import collection_paused
from runtime.dry_run import dry_run
from weightshift.errors import DryRunFailed


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_the_last_of_several_pauses_resumes() -> None:
    first, second = collection_paused(), collection_paused()
    first.__enter__()
    other = threading.Thread(target=second.__enter__)
    other.start()
    other.join()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_failure_resumes_and_what_somebody_switched_off_stays_off() -> None:
    with pytest.raises(DryRunFailed), collection_paused():
        raise DryRunFailed
    assert gc.isenabled()
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()


async def test_nothing_is_collected_while_a_candidate_loads_and_everything_afterwards(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collecting: list[bool] = []

    def watched(*arguments: Any, **options: Any) -> None:
        collecting.append(gc.isenabled())
        dry_run(*arguments, **options)

    monkeypatch.setattr(candidate_preparer, "dry_run", watched)
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        assert collecting == [False]
        assert gc.isenabled()
        await world.publish(artifacts.push("v2", weights=b"not weights"))
        await world.until(lambda: instance.report().candidate.error is not None)
        assert gc.isenabled()

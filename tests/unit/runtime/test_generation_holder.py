import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from runtime.cleanup import CleanupWorker
from runtime.generation_holder import Generation, GenerationHolder, LoadedModel
from runtime.model_loader import dispose
from weightshift.contracts.target import Target
from weightshift.errors import NotServing

MakeGeneration = Callable[..., Generation]
MakeTarget = Callable[..., Target]


class Retired:
    """Collects what the holder retires."""

    def __init__(self) -> None:
        self.generations: list[Generation] = []

    def __call__(self, generation: Generation) -> None:
        self.generations.append(generation)


@pytest.fixture
def retired() -> Retired:
    return Retired()


@pytest.fixture
def holder(retired: Retired) -> GenerationHolder:
    return GenerationHolder(retire=retired)


def install(holder: GenerationHolder, generation: Generation) -> bool:
    holder.aim(generation.target)
    return holder.install(generation)


def test_nothing_is_served_before_the_first_installation(holder: GenerationHolder) -> None:
    with pytest.raises(NotServing):
        holder.acquire()
    assert not holder.can_serve


def test_old_requests_stay_on_old_and_new_ones_see_only_new(
    holder: GenerationHolder, retired: Retired, make_generation: MakeGeneration
) -> None:
    old, new = make_generation(1), make_generation(2)
    install(holder, old)
    borrowed = holder.acquire()
    assert install(holder, new)
    assert borrowed is old
    assert holder.acquire() is new
    assert retired.generations == []
    holder.release(borrowed)
    assert retired.generations == [old]


def test_a_slow_older_candidate_cannot_overwrite(
    holder: GenerationHolder, retired: Retired, make_generation: MakeGeneration, make_target: MakeTarget
) -> None:
    slow, quick = make_generation(2), make_generation(3)
    holder.aim(slow.target)
    assert install(holder, quick)
    assert not holder.install(slow)
    assert holder.current is quick
    assert retired.generations == [slow]


def test_the_same_revision_with_other_content_is_not_installed(
    holder: GenerationHolder, make_generation: MakeGeneration, make_target: MakeTarget
) -> None:
    holder.aim(make_target(2))
    assert not holder.install(make_generation(target=make_target(2, manifest_sha256="f" * 64)))
    assert holder.current is None


def test_a_repeated_installation_changes_nothing(
    holder: GenerationHolder, retired: Retired, make_generation: MakeGeneration, make_target: MakeTarget
) -> None:
    first, again = make_generation(2), make_generation(2)
    assert install(holder, first)
    assert not install(holder, again)
    assert holder.current is first
    assert retired.generations == [again]


def test_several_completions_schedule_clean_up_once(
    holder: GenerationHolder, retired: Retired, make_generation: MakeGeneration
) -> None:
    old = make_generation(1)
    install(holder, old)
    for _ in range(5):
        holder.acquire()
    install(holder, make_generation(2))
    for _ in range(5):
        holder.release(old)
    assert retired.generations == [old]


def test_an_unused_generation_is_retired_by_its_successor(
    holder: GenerationHolder, retired: Retired, make_generation: MakeGeneration
) -> None:
    old = make_generation(1)
    install(holder, old)
    install(holder, make_generation(2))
    assert retired.generations == [old]


def test_below_the_floor_nothing_is_served_until_the_new_revision_is_there(
    holder: GenerationHolder, make_generation: MakeGeneration, make_target: MakeTarget
) -> None:
    install(holder, make_generation(1))
    target = make_target(2, serve_floor=2)
    holder.aim(target)
    assert not holder.can_serve
    with pytest.raises(NotServing):
        holder.acquire()
    assert holder.install(make_generation(target=target))
    assert holder.acquire().revision == 2


def test_the_floor_never_falls(
    holder: GenerationHolder, make_generation: MakeGeneration, make_target: MakeTarget
) -> None:
    install(holder, make_generation(1))
    holder.aim(make_target(5, serve_floor=5))
    holder.aim(make_target(6, serve_floor=0))
    assert not holder.can_serve


def test_a_resident_model_is_shared_and_disposed_of_with_its_last_generation(
    holder: GenerationHolder, retired: Retired, make_generation: MakeGeneration, make_target: MakeTarget
) -> None:
    first = make_generation(1)
    install(holder, first)
    digest = first.loaded.manifest_sha256
    assert holder.claim("0" * 64) is None
    shared = holder.claim(digest)
    assert shared is first.loaded
    adopted = make_generation(target=make_target(2, manifest_sha256=digest), loaded=shared)
    assert install(holder, adopted)
    assert holder.forget(first) is None
    install(holder, make_generation(3))
    assert holder.forget(adopted) is shared
    assert holder.claim(digest) is None


def test_a_retired_model_still_in_use_can_be_claimed(
    holder: GenerationHolder, make_generation: MakeGeneration
) -> None:
    old = make_generation(1)
    install(holder, old)
    holder.acquire()
    install(holder, make_generation(2))
    assert holder.claim(old.loaded.manifest_sha256) is old.loaded


def test_threads_never_lose_a_reference_or_see_a_retired_generation_anew(
    make_generation: MakeGeneration,
) -> None:
    counts: Counter[int] = Counter()
    retired: SimpleQueue[Generation] = SimpleQueue()
    holder = GenerationHolder(retire=retired.put)
    swaps = 200
    generations = [
        make_generation(revision, loaded=make_generation(1).loaded) for revision in range(1, swaps)
    ]
    install(holder, generations[0])
    finished = threading.Event()
    problems: list[str] = []

    def use() -> None:
        newest = 0
        while not finished.is_set():
            generation = holder.acquire()
            if generation.revision < newest:
                problems.append(f"{generation.revision} after {newest}")
            newest = generation.revision
            holder.release(generation)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for generation in generations[1:]:
        install(holder, generation)
    finished.set()
    for thread in threads:
        thread.join()
    while not retired.empty():
        counts[retired.get().revision] += 1
    assert problems == []
    assert counts == {generation.revision: 1 for generation in generations[:-1]}
    assert all(generation.references == 0 for generation in generations)


class Bench:
    """A clean-up worker whose disposals fail a given number of times."""

    def __init__(self, *, failures: int = 0) -> None:
        self.queue: SimpleQueue[Generation | None] = SimpleQueue()
        self.holder = GenerationHolder(retire=self.queue.put)
        self.failures = failures
        self.failed = 0
        self.disposed: list[int] = []
        self.worker = CleanupWorker(
            queue=self.queue,
            forget=self.holder.forget,
            dispose=self._dispose,
            failed=self._count,
            disposed=lambda generation: self.disposed.append(generation.revision),
            retry_seconds=0,
        )

    def _dispose(self, loaded: LoadedModel) -> None:
        if self.failed < self.failures:
            raise RuntimeError("the device is busy")
        dispose(loaded)

    def _count(self) -> None:
        self.failed += 1


def test_a_failing_clean_up_is_retried_and_changes_no_response(make_generation: MakeGeneration) -> None:
    bench = Bench(failures=2)
    install(bench.holder, make_generation(1))
    old = bench.holder.acquire()
    install(bench.holder, make_generation(2))
    bench.holder.release(old)
    assert bench.holder.acquire().revision == 2
    bench.worker.close(10)
    assert bench.failed == 2
    assert bench.disposed == [1]


def test_a_clean_up_that_fails_for_good_stops_neither_the_worker_nor_serving(
    make_generation: MakeGeneration,
) -> None:
    bench = Bench(failures=3)
    for revision in (1, 2, 3):
        install(bench.holder, make_generation(revision))
    bench.worker.close(10)
    assert bench.failed == 3
    assert bench.disposed == [1, 2], "nobody will come back to the first one's series either"
    assert bench.holder.acquire().revision == 3


def test_a_disposed_model_is_unreachable(make_generation: MakeGeneration) -> None:
    bench = Bench()
    generation = make_generation(1)
    module = weakref.ref(generation.loaded.module)
    install(bench.holder, generation)
    install(bench.holder, make_generation(2))
    bench.worker.close(10)
    gc.collect()
    assert module() is None

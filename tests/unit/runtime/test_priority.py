"""Background threads stand back for requests, in short turns."""

import resource
import time

import pytest

from runtime import priority
from runtime.priority import give_way


def pauses() -> int:
    """How often this thread has let the processor go by itself."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_thread_that_has_computed_for_a_while_stands_back_once() -> None:
    compute(0.005)
    before = pauses()
    give_way(lambda: False)
    after_a_turn = pauses()
    assert after_a_turn > before
    give_way(lambda: False)
    assert pauses() == after_a_turn


def test_it_stands_back_until_the_requests_in_progress_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority, "_LONGEST_PAUSE_SECONDS", 60.0)
    compute(0.005)
    progress = iter([True, True, True, False])
    give_way(lambda: next(progress))
    assert not list(progress)


def test_it_goes_on_when_requests_never_end() -> None:
    compute(0.005)
    give_way(lambda: True)

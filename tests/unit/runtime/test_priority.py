"""Background threads stand back for requests, in short turns."""

import resource
import time

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
    give_way()
    after_a_turn = pauses()
    assert after_a_turn > before
    give_way()
    assert pauses() == after_a_turn

"""Background threads stand back for requests, in short turns."""

import ctypes
import platform
import resource
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime import priority
from runtime.priority import give_way, yield_to_requests
from weightshift.processor_turns import take_turns_of

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}


def niceness_and_slice() -> tuple[int, int]:
    """This thread's niceness and its turn in nanoseconds; 0 where the kernel knows no turns of one's own."""
    attributes = ctypes.create_string_buffer(48)
    number = SCHED_GETATTR[platform.machine()]
    assert ctypes.CDLL(None, use_errno=True).syscall(number, 0, attributes, 48, 0) == 0
    fields = struct.unpack("=IIQiIQQQ", attributes.raw)
    return fields[3], fields[5]


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


def test_whoever_serves_gets_the_core_from_a_background_thread_when_it_wakes() -> None:
    if platform.machine() not in SCHED_GETATTR:
        pytest.skip("the number of the system call is not known for this machine")
    usual = usual_niceness, usual_turn = niceness_and_slice()
    if usual_turn == 0:
        pytest.skip("a kernel before 6.12 has no turns of one's own")
    if usual_niceness >= 3:
        pytest.skip("whoever runs this stands back as much as the background does")
    with ThreadPoolExecutor(1, initializer=yield_to_requests) as background:
        niceness, turn = background.submit(niceness_and_slice).result()
    assert niceness > usual_niceness
    assert turn > 2 * usual_turn
    # Nothing of it is passed on to the thread that serves.
    assert niceness_and_slice() == usual


def test_turns_are_as_long_as_asked_for_and_passed_on_to_new_threads() -> None:
    if platform.machine() not in SCHED_GETATTR:
        pytest.skip("the number of the system call is not known for this machine")
    usual_niceness, usual_turn = niceness_and_slice()
    if usual_turn == 0:
        pytest.skip("a kernel before 6.12 has no turns of one's own")

    def started_by_it() -> tuple[int, int]:
        with ThreadPoolExecutor(1) as inner:
            return inner.submit(niceness_and_slice).result()

    with ThreadPoolExecutor(1, initializer=take_turns_of, initargs=(0.0005,)) as short:
        assert short.submit(niceness_and_slice).result() == (usual_niceness, 500_000)
        assert short.submit(started_by_it).result() == (usual_niceness, 500_000)
    assert niceness_and_slice() == (usual_niceness, usual_turn)

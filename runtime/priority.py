"""Background threads that give way to requests."""

import os
import sys
import threading
import time
from collections.abc import Callable

import torch

from weightshift.processor_turns import take_turns_of

# Half the share of a serving thread: on a full machine a load still comes through, or no rollback would.
_NICENESS = 3
# The default is up to 3 milliseconds. A request would wait for the end of a turn while a forward of the
# dry-run computes, and at each of its changes of threads.
_TURNS_IN_THE_BACKGROUND = 0.01
_SWITCH_SECONDS = 0.0005
_TURN_SECONDS = 0.0005
_PAUSE_SECONDS = 0.00025
# On a full machine a load still has a fifth of a core.
_LONGEST_PAUSE_SECONDS = 0.002

_own = threading.local()


def yield_to_requests() -> None:
    """Lower the calling thread's share of a busy core, let others in at once, and keep its maths on it.

    Called first thing in a background thread.
    """
    torch.set_num_threads(1)
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
    take_turns_of(_TURNS_IN_THE_BACKGROUND)


def switch_threads_quickly() -> None:
    """Let a request wait at most half a millisecond for the interpreter, ten times less than usually.

    A request changes threads twice, and each time it may find a loading thread running Python code.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


def give_way(is_busy: Callable[[], bool]) -> None:
    """Stand back for a moment, and then while `is_busy` tells of requests in progress, up to 2 milliseconds.

    Only if the calling thread has computed for half a millisecond since it last did. A request that shares a
    core with a load then waits for one short turn of it, and not for all of it: neither a low priority nor
    the interpreter's switching keeps them apart, since a forward lets the interpreter go at every operation
    and has to get it back from the loading thread each time.
    """
    if time.thread_time() - getattr(_own, "stood_back_at", 0.0) < _TURN_SECONDS:
        return
    latest = time.monotonic() + _LONGEST_PAUSE_SECONDS
    # Once in any case: a request that has just come is in progress only when the event loop has read it.
    time.sleep(_PAUSE_SECONDS)
    while is_busy() and time.monotonic() < latest:
        time.sleep(_PAUSE_SECONDS)
    _own.stood_back_at = time.thread_time()

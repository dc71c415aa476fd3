"""Background threads that give way to requests."""

import ctypes
import os
import platform
import struct
import sys
import threading
import time
from collections.abc import Callable

import torch

# Half the share of a serving thread: on a full machine a load still comes through, or no rollback would.
_NICENESS = 3
# The default is up to 3 milliseconds.
_SLICE_NANOSECONDS = 10_000_000
# The system call's number; glibc has no function for it before 2.41.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
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
    _take_long_turns()


def _take_long_turns() -> None:
    """Ask for long turns, and thereby for late ones: whoever takes shorter ones gets the core when it wakes.

    A request would otherwise wait until the end of a turn, up to 4 milliseconds, while a forward of the
    dry-run computes, and at each of its changes of threads. The share of the core stays as it is. Kernels
    before 6.12, which wait less, ignore it, and where it is not allowed nothing is lost.
    """
    if (number := _SCHED_SETATTR.get(platform.machine())) is not None:
        attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, _NICENESS, 0, _SLICE_NANOSECONDS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


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

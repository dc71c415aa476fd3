"""Background threads that give way to requests."""

import os
import sys
import threading

import torch

# Half the share of a serving thread: on a full machine a load still comes through, or no rollback would.
_NICENESS = 3
_SWITCH_SECONDS = 0.0005


def yield_to_requests() -> None:
    """Lower the calling thread's share of a busy core, and keep its maths on it.

    Called first thing in a background thread.
    """
    torch.set_num_threads(1)
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def switch_threads_quickly() -> None:
    """Let a request wait at most half a millisecond for the interpreter, ten times less than usually.

    A request changes threads twice, and each time it may find a loading thread running Python code.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)

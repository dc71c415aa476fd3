"""How long the turns of a thread on the processor are, where the kernel lets it choose."""

import ctypes
import os
import platform
import struct
import threading

# The system call's number; glibc has no function for it before 2.41.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SIZE_OF_ATTRIBUTES = 48


def take_turns_of(seconds: float) -> None:
    """Ask for turns of this length for the calling thread, and for threads that it starts from now on.

    Whoever takes shorter turns gets the core from one with longer ones as soon as it wakes, instead of at
    the end of a turn, up to 4 milliseconds later; the shares of the core stay as they are. Linux has a
    tenth of a millisecond to a tenth of a second; before 6.12 it ignores it, and where it is not allowed
    nothing is lost.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or not hasattr(os, "SCHED_OTHER"):
        return
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    nanoseconds = round(seconds * 1e9)
    attributes = struct.pack(
        "=IIQiIQQQ", _SIZE_OF_ATTRIBUTES, os.SCHED_OTHER, 0, niceness, 0, nanoseconds, 0, 0
    )
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)

"""No garbage collection while a model is loaded: it would look at every new object, with requests waiting."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_holders = 0
_was_enabled = True


@contextmanager
def collection_paused() -> Iterator[None]:
    """Inside, nothing is collected; the last of several that overlap, in any threads, resumes it."""
    global _holders, _was_enabled  # noqa: PLW0603 - the collector is the process's, too
    with _lock:
        if _holders == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0 and _was_enabled:
                gc.enable()

"""Clean-up of retired generations: off the request path, observable, and tried a few times."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from runtime.generation_holder import Generation, LoadedModel
from runtime.priority import yield_to_requests

_logger = logging.getLogger(__name__)
_ATTEMPTS = 3


class CleanupWorker:
    """One thread that disposes of the models of retired generations nobody uses any more.

    They come through `queue`; `forget` and `dispose` do the work. `failed` is called for each failed
    attempt, `disposed` once a generation is gone or was given up. A clean-up that fails for good is logged
    and never reaches a response.
    """

    def __init__(
        self,
        *,
        queue: "SimpleQueue[Generation | None]",
        forget: Callable[[Generation], LoadedModel | None],
        dispose: Callable[[LoadedModel], None],
        failed: Callable[[], None],
        disposed: Callable[[Generation], None],
        retry_seconds: float = 0.5,
    ) -> None:
        self._forget = forget
        self._dispose = dispose
        self._failed = failed
        self._disposed = disposed
        self._retry_seconds = retry_seconds
        self._queue = queue
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cleanup", daemon=True)
        self._thread.start()

    def close(self, deadline: float) -> None:
        """Finish what is queued within `deadline` seconds, without waiting between attempts."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join(deadline)

    def _run(self) -> None:
        yield_to_requests()
        while (generation := self._queue.get()) is not None:
            loaded = self._forget(generation)
            if loaded is not None:
                self._try_dispose(loaded)
            self._disposed(generation)

    def _try_dispose(self, loaded: LoadedModel) -> None:
        for _ in range(_ATTEMPTS):
            try:
                self._dispose(loaded)
            except Exception:
                self._failed()
                _logger.exception("clean-up of manifest %s failed", loaded.manifest_sha256)
                self._closing.wait(self._retry_seconds)
            else:
                return

"""`python -m runtime`: one instance, configured by `WEIGHTSHIFT_RUNTIME_*` and `WEIGHTSHIFT_STORE_*`."""

import asyncio
import logging
import os
import sys

import uvloop
from pydantic import ValidationError

from runtime.settings import RuntimeSettings
from weightshift.errors import InvalidInput, WeightshiftError
from weightshift.settings import StoreSettings

_logger = logging.getLogger("runtime")


def main() -> int:
    """Run the instance; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # It names every request with its address, at every poll.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        settings, store = RuntimeSettings(), StoreSettings()
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            field = ".".join(str(part) for part in problem["loc"])
            _logger.error("%s.%s: %s", error.title, field, problem["msg"])  # noqa: TRY400 - no trace
        return InvalidInput.exit_code
    _use_one_thread()
    from runtime.server import serve  # noqa: PLC0415 - it loads the maths libraries

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if not runner.run(serve(settings, store)):
                # The runner would wait for the thread, and so would the interpreter; it may be anywhere in
                # a model's code.
                _logger.warning("a candidate did not stop in time and is abandoned")
                logging.shutdown()
                os._exit(0)
    except WeightshiftError as error:
        _logger.error("%s", error)  # noqa: TRY400 - the message says all
        return error.exit_code
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        _logger.error(  # noqa: TRY400 - the system's words say all
            "%s%s; check the ports and cache_dir, and that this process may use them", error.strerror, place
        )
        return WeightshiftError.exit_code
    return 0


def _use_one_thread() -> None:
    """Keep a forward on the thread that runs it; the maths libraries read this when first loaded."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"


if __name__ == "__main__":
    sys.exit(main())

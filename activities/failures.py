"""From our own errors to what Temporal needs to know: the type by name, and whether a retry can help."""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError

from activities.incidents import count_stale_fence
from weightshift.errors import StaleFence, Unreachable, WeightshiftError


@contextmanager
def application_errors(*, insist: bool = False) -> Iterator[None]:
    """Raise our errors as `ApplicationError`; only what is unreachable is worth another attempt.

    With `insist`, for what has to happen in the end, everything is but a newer command. A command that came
    too late is counted.
    """
    try:
        yield
    except WeightshiftError as error:
        if isinstance(error, StaleFence):
            count_stale_fence()
        is_final = isinstance(error, StaleFence) if insist else not isinstance(error, Unreachable)
        raise ApplicationError(str(error), type=type(error).__name__, non_retryable=is_final) from error

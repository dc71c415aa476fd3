"""From our own errors to what Temporal needs to know: the type by name, and whether a retry can help."""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError

from weightshift.errors import Unreachable, WeightshiftError


@contextmanager
def application_errors() -> Iterator[None]:
    """Raise our errors as `ApplicationError`; only what is unreachable is worth another attempt."""
    try:
        yield
    except WeightshiftError as error:
        raise ApplicationError(
            str(error), type=type(error).__name__, non_retryable=not isinstance(error, Unreachable)
        ) from error

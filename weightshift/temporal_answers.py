"""What Temporal answers, in our words."""

from collections.abc import Awaitable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.client import (
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import TerminatedError
from temporalio.service import RPCError, RPCStatusCode

from weightshift import errors
from weightshift.contracts.identity import Service
from weightshift.refused_releases import typed_error

Answer = TypeVar("Answer")

_LONGEST_SILENCE = timedelta(seconds=90)
"""A poll lasts a minute; who has not begun another by then, clocks that differ allowed for, is gone."""
_NO_WORKER = "no poller seen"
_STUCK = "Workflow Task in failed state"
"""What Temporal says where no worker asks for work, and where one cannot take a workflow any further."""


async def ask(service: Service, call: Awaitable[Answer]) -> Answer:
    """Await a query or an update; every failure is an error of `weightshift.errors`."""
    try:
        return await call
    except (WorkflowQueryFailedError, WorkflowUpdateFailedError) as error:
        raise typed_error(error.cause) from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise errors.UnknownService(
                f"no release of {service} is running; `weightshift release list {service.model} "
                f"-e {service.environment}` shows those that were"
            ) from error
        if _STUCK in error.message:
            raise stuck(service) from error
        if error.status is RPCStatusCode.DEADLINE_EXCEEDED or _NO_WORKER in error.message:
            raise errors.TemporalUnreachable(
                "no worker has answered, or Temporal is away; "
                "`weightshift doctor` and the worker's log say why"
            ) from error
        raise unreachable(error) from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        # Also what the SDK makes of a deadline of ours.
        raise errors.TemporalUnreachable("no worker answers; start one and ask again") from error


def count_living(pollers: Iterable[PollerInfo], now: datetime) -> int:
    """Count workers that have asked for work lately enough to be there still."""
    since = now - _LONGEST_SILENCE
    living = (one for one in pollers if one.last_access_time.ToDatetime(tzinfo=UTC) >= since)
    return len({poller.identity for poller in living})


def unreachable(error: RPCError) -> errors.TemporalUnreachable:
    """Return the error for a server that did not answer."""
    return errors.TemporalUnreachable(f"Temporal did not answer: {error.message}")


def stuck(service: Service) -> errors.ReleaseStuck:
    """Return the error for a workflow that its worker cannot take any further."""
    return errors.ReleaseStuck(
        f"the release of {service} is stuck: its worker fails at the next step, see its log; traffic "
        "stays as it is until a worker runs that can go on, or take it back with `weightshift release "
        f"rollback {service.model} -e {service.environment} --break-glass`"
    )


def terminated(service: Service, cause: TerminatedError) -> errors.ReleaseTerminated:
    """Return the error for a workflow that was ended without running its rollback."""
    return errors.ReleaseTerminated(
        f"it was terminated ({cause.message}), which runs no rollback: traffic and targets are as they were "
        f"left; next: weightshift release rollback {service.model} -e {service.environment}"
    )

"""Releases that were refused at admission: they never held the lock, so Temporal alone remembers them."""

from temporalio.client import Client, WorkflowExecution, WorkflowFailureError
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError, FailureError

from weightshift import errors
from weightshift.contracts.identity import Service
from weightshift.contracts.release import Outcome, ReleaseRecord, ReleaseRequest

WORKFLOW = "Release"
MODEL_ATTRIBUTE = SearchAttributeKey.for_keyword("ReleaseModel")
ENVIRONMENT_ATTRIBUTE = SearchAttributeKey.for_keyword("ReleaseEnvironment")
_MOST = 20


async def refused_releases(client: Client, service: Service) -> tuple[ReleaseRecord, ...]:
    """Return a service's newest refused releases. The registry may know some: those that held the lock.

    Raises Temporal's own `RPCError`.
    """
    query = (
        f'WorkflowType = "{WORKFLOW}" AND ExecutionStatus = "Failed" AND '
        f'{MODEL_ATTRIBUTE.name} = "{service.model}" AND '
        f'{ENVIRONMENT_ATTRIBUTE.name} = "{service.environment}"'
    )
    return tuple([await _record(client, run) async for run in client.list_workflows(query, limit=_MOST)])


async def _record(client: Client, run: WorkflowExecution) -> ReleaseRecord:
    handle = client.get_workflow_handle(run.id, run_id=run.run_id)
    first = await anext(handle.fetch_history_events(page_size=1))
    payloads = first.workflow_execution_started_event_attributes.input.payloads
    (request,) = await client.data_converter.decode(payloads, [ReleaseRequest])
    reason = ""
    try:
        await handle.result()
    except WorkflowFailureError as error:
        reason = str(typed_error(error.cause))
    return ReleaseRecord(
        release_id=request.release_id,
        service=request.service,
        artifact_id=request.artifact_id,
        operator=request.operator,
        epoch=0,
        outcome=Outcome.REFUSED,
        reason=reason,
        started_at=run.start_time,
        finished_at=run.close_time,
        run_id=run.run_id or "",
        request_key=request.request_key,
        request_digest=request.digest(),
    )


def typed_error(error: BaseException | None) -> errors.WeightshiftError:
    """Return the error of ours that a Temporal failure carries by its type's name."""
    cause = error
    while isinstance(cause, FailureError):
        if isinstance(cause, ApplicationError):
            known = getattr(errors, cause.type or "", None)
            if isinstance(known, type) and issubclass(known, errors.WeightshiftError):
                return known(cause.message)
        if cause.cause is None:
            break
        cause = cause.cause
    return errors.WeightshiftError(str(cause or "the release failed"))

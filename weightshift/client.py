"""The typed façade over Temporal: starts, steers and asks releases. Owns ids and policies."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Self

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
)
from temporalio.exceptions import TerminatedError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from weightshift import errors
from weightshift.contracts.identity import Service
from weightshift.contracts.release import (
    GivenApproval,
    Intervention,
    ReleaseRecord,
    ReleaseRequest,
    ReleaseResult,
    ReleaseStatus,
    RollbackRequest,
)
from weightshift.judging import judging
from weightshift.refused_releases import (
    ENVIRONMENT_ATTRIBUTE,
    MODEL_ATTRIBUTE,
    WORKFLOW,
    refused_releases,
    typed_error,
)
from weightshift.settings import TemporalSettings
from weightshift.temporal_answers import ask, count_living, terminated, unreachable
from weightshift.temporal_connection import connect

TASK_QUEUE = "weightshift"
ARTIFACT_ATTRIBUTE = SearchAttributeKey.for_keyword("ReleaseArtifact")
STAGE_ATTRIBUTE = SearchAttributeKey.for_keyword("ReleaseStage")
_POLL_SECONDS = 0.25
_ANSWER_SECONDS = 30.0
_STATUS_SECONDS = 5.0
_NOBODY = Intervention()


class ReleaseClient:
    """Starts and steers releases; every failure is an error of `weightshift.errors`."""

    def __init__(self, *, client: Client, task_queue: str = TASK_QUEUE) -> None:
        self._client = client
        self._task_queue = task_queue

    @classmethod
    async def connect(cls, *, settings: TemporalSettings) -> Self:
        """Connect to Temporal. Raises `TemporalUnreachable`, `InvalidInput` for a bad certificate."""
        try:
            async with asyncio.timeout(settings.connect_timeout):
                client = await connect(settings)
        except (RuntimeError, TimeoutError, RPCError) as error:
            raise errors.TemporalUnreachable(
                f"Temporal does not answer at {settings.address}; check WEIGHTSHIFT_TEMPORAL_ADDRESS"
            ) from error
        return cls(client=client)

    async def start(self, request: ReleaseRequest) -> str:
        """Start a release; returns its run id. Raises `ReleaseActive` while another one runs."""
        service = request.service
        try:
            started = await self._client.start_workflow(
                WORKFLOW,
                request,
                id=service.workflow_id,
                task_queue=self._task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                search_attributes=TypedSearchAttributes(
                    [
                        SearchAttributePair(MODEL_ATTRIBUTE, service.model),
                        SearchAttributePair(ENVIRONMENT_ATTRIBUTE, service.environment),
                        SearchAttributePair(ARTIFACT_ATTRIBUTE, request.artifact_id),
                        SearchAttributePair(STAGE_ATTRIBUTE, "preparing"),
                    ]
                ),
                static_summary=f"{request.artifact_id} to {service}",
                static_details=(
                    f"Release `{request.release_id}` by **{request.operator}**"
                    + (f": {request.reason}" if request.reason else "")
                ),
            )
        except WorkflowAlreadyStartedError as error:
            raise errors.ReleaseActive(
                f"a release of {service} is already running; see `weightshift release status {service.model} "
                f"-e {service.environment}`"
            ) from error
        except RPCError as error:
            raise unreachable(error) from error
        return started.result_run_id or ""

    async def status(self, service: Service) -> ReleaseStatus:
        """Ask the latest release of a service where it is. Raises `UnknownService`."""
        status = await self._query(service)
        return status if status.outcome else await self._judged(status, await self._describe(service))

    async def wait(
        self, service: Service, *, on_status: Callable[[ReleaseStatus], None], run_id: str = ""
    ) -> ReleaseStatus:
        """Follow a release until its outcome is known, reporting every change.

        It is the one with this run id, or else the newest one, and no other that is started after it. Raises
        `UnknownService`, and what the release was refused with when it never got past admission.
        """
        return await self._follow(service, run_id, on_status, lambda status: status.outcome is not None)

    async def admitted(self, service: Service, run_id: str) -> ReleaseStatus:
        """Wait until a release that was started has its lock. Raises what it was refused with."""
        # The first line of its story is its admission.
        return await self._follow(service, run_id, lambda status: None, lambda status: bool(status.steps))

    async def _follow(
        self,
        service: Service,
        run_id: str,
        on_status: Callable[[ReleaseStatus], None],
        is_enough: Callable[[ReleaseStatus], bool],
    ) -> ReleaseStatus:
        last: ReleaseStatus | None = None
        while True:
            description = await self._describe(service, run_id)
            run_id = description.run_id
            status = await self._query_or_none(service, run_id)
            if status is not None:
                status = await self._judged(status, description)
            if status is not None and status != last:
                on_status(status)
                last = status
            if status is not None and is_enough(status):
                return status
            await self._raise_if_failed(service, description)
            await asyncio.sleep(_POLL_SECONDS)

    async def result(self, service: Service, *, run_id: str = "") -> ReleaseResult:
        """Wait for the workflow to end, parachute included. Raises what the release failed with."""
        try:
            result: ReleaseResult = await self._handle(service, ReleaseResult, run_id).result()
        except WorkflowFailureError as error:
            if isinstance(error.cause, TerminatedError):
                raise terminated(service, error.cause) from error
            raise typed_error(error.cause) from error
        except RPCError as error:
            raise unreachable(error) from error
        return result

    async def active_artifact(self, service: Service) -> str | None:
        """Return what is being released, or None when no release runs. Needs no worker to answer."""
        try:
            description = await self._handle(service).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise unreachable(error) from error
        if description.status is not WorkflowExecutionStatus.RUNNING:
            return None
        return description.typed_search_attributes.get(ARTIFACT_ATTRIBUTE, "")

    async def refusal(self, service: Service) -> errors.WeightshiftError | None:
        """Return what the newest release failed with, or that it was terminated; None if neither."""
        description = await self._describe(service)
        try:
            await self._raise_if_failed(service, description)
        except errors.Unreachable:
            raise
        except errors.WeightshiftError as error:
            return error
        return None

    async def refused(self, service: Service) -> tuple[ReleaseRecord, ...]:
        """Return the newest releases that were refused at admission, as far as Temporal remembers them."""
        try:
            return await refused_releases(self._client, service)
        except RPCError as error:
            raise unreachable(error) from error

    async def workers(self) -> int:
        """Return how many workers asked Temporal for releases within the length of one poll.

        Temporal remembers those that are gone for minutes.
        Raises `TemporalUnreachable`, also for a namespace that does not exist.
        """
        request = DescribeTaskQueueRequest(
            namespace=self._client.namespace,
            task_queue=TaskQueue(name=self._task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        try:
            found = await self._client.workflow_service.describe_task_queue(request)
        except RPCError as error:
            raise unreachable(error) from error
        return count_living(found.pollers, datetime.now(UTC))

    async def rollback(self, service: Service, rollback: RollbackRequest) -> ReleaseStatus:
        """Take traffic back, and answer when the mesh shows it.

        The signal goes first: it is kept by Temporal and counts even when no worker can answer now, which
        raises `TemporalUnreachable` after a while. One that takes longer, since weights have to be loaded or
        the mesh is away, raises `RollbackUnderWay`. The answer's outcome is `promoted` when the release had
        gone through before.
        """
        await self.signal_rollback(service, rollback)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._update(service, "rollback", rollback)
        except (errors.UnknownService, errors.Conflict):
            return await self.status(service)  # it ended meanwhile, one way or the other
        except (TimeoutError, errors.TemporalUnreachable) as error:
            raise await self._unanswered(service) from error

    async def signal_rollback(self, service: Service, rollback: RollbackRequest) -> None:
        """Ask for traffic back, without waiting for an answer."""
        await ask(service, self._handle(service).signal("rollback", rollback))

    async def approve(self, service: Service, approval_id: str) -> ReleaseStatus:
        """Count an approval that the registry issued. Raises `UnknownApproval`, `ApprovalInvalid`."""
        return await self._update(service, "approve", GivenApproval(approval_id=approval_id))

    async def promote(self, service: Service, by: Intervention = _NOBODY) -> ReleaseStatus:
        """Skip the rest of the current window, or of the parachute."""
        return await self._update(service, "promote", by)

    async def pause(self, service: Service, by: Intervention = _NOBODY) -> ReleaseStatus:
        """Stay at the current stage; gates keep judging."""
        return await self._update(service, "pause", by)

    async def resume(self, service: Service, by: Intervention = _NOBODY) -> ReleaseStatus:
        """Go on after a pause."""
        return await self._update(service, "resume", by)

    async def _update(self, service: Service, name: str, *arguments: object) -> ReleaseStatus:
        call: Awaitable[ReleaseStatus] = self._handle(service).execute_update(
            name, args=list(arguments), result_type=ReleaseStatus
        )
        return await ask(service, call)

    def _handle(
        self, service: Service, result_type: type | None = None, run_id: str = ""
    ) -> WorkflowHandle[Any, Any]:
        """Return a handle of one run, by default of the newest."""
        return self._client.get_workflow_handle(
            service.workflow_id, run_id=run_id or None, result_type=result_type
        )

    async def _query(self, service: Service, run_id: str = "") -> ReleaseStatus:
        handle = self._handle(service, run_id=run_id)
        call: Awaitable[ReleaseStatus] = handle.query("status", result_type=ReleaseStatus)
        return await ask(service, call)

    async def _query_or_none(self, service: Service, run_id: str) -> ReleaseStatus | None:
        """Return the status, or None while no worker can answer (it may be restarting)."""
        try:
            return await self._query(service, run_id)
        except errors.TemporalUnreachable:
            return None

    async def _judged(
        self, status: ReleaseStatus, description: WorkflowExecutionDescription
    ) -> ReleaseStatus:
        return status.model_copy(update={"judging": await judging(self._client, description)})

    async def _unanswered(self, service: Service) -> errors.WeightshiftError:
        """Return why a recorded rollback has no answer yet: it takes its time, or nobody works on it."""
        try:
            async with asyncio.timeout(_STATUS_SECONDS):
                status = await self.status(service)
        except errors.ReleaseStuck as stuck:
            return stuck
        except (TimeoutError, errors.WeightshiftError):
            return errors.TemporalUnreachable(
                "the rollback is recorded, but no worker answers; start one, or use --break-glass"
            )
        return errors.RollbackUnderWay(
            f"the rollback is under way and traffic is {status.split or 'not read yet'}; follow it with "
            f"`weightshift release watch {service.model} -e {service.environment}`"
        )

    async def _describe(self, service: Service, run_id: str = "") -> WorkflowExecutionDescription:
        return await ask(service, self._handle(service, run_id=run_id).describe())

    async def _raise_if_failed(self, service: Service, description: WorkflowExecutionDescription) -> None:
        if description.status is not WorkflowExecutionStatus.RUNNING:
            await self.result(service, run_id=description.run_id)

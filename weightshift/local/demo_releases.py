"""One release after the other, as the demonstration runs them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from ulid import ULID

from weightshift.client import ReleaseClient
from weightshift.contracts.identity import Service
from weightshift.contracts.plan import Gate, Metric, OnInconclusive, Plan
from weightshift.contracts.release import (
    Outcome,
    ReleasePhase,
    ReleaseRequest,
    ReleaseStatus,
    RollbackRequest,
)
from weightshift.errors import LocalStackError, ReleaseActive
from weightshift.local.demo_report import DemoRelease
from weightshift.mesh.base import Mesh

OPERATOR = "demo"
ROLLBACK_WEIGHT = 25
_RELEASE_SECONDS = 150.0
_SETTLE_SECONDS = 60.0
_POLL_SECONDS = 0.2
_SIGNALLED = "signalled by the demo"

# Small, shared machines are noisy: the limits are wide, and the slow model is far beyond them.
PLAN = Plan.model_validate(
    {
        "stages": [5, ROLLBACK_WEIGHT, 50, 100],
        "window": "4s",
        "interval": "1s",
        "max_window": "60s",
        "min_samples": 10,
        "retain": "1s",
        "load_deadline": "60s",
        "on_inconclusive": OnInconclusive.ROLLBACK,
        "gates": [
            Gate(metric=Metric.ERROR_RATE, maximum=0.3),
            Gate(metric=Metric.LATENCY, ratio=2.0, quantile=0.9, margin=0.25),
        ],
    }
)


@dataclass(frozen=True)
class RollbackTiming:
    """A release that was taken back by hand; `milliseconds` from the signal to the mesh's read-back."""

    release: DemoRelease
    milliseconds: float | None


class DemoReleases:
    """Starts releases of one service and waits for their ends."""

    def __init__(
        self,
        *,
        client: ReleaseClient,
        mesh: Mesh,
        service: Service,
        on_status: Callable[[ReleaseStatus], None],
    ) -> None:
        self._client = client
        self._mesh = mesh
        self._service = service
        self._on_status = on_status

    async def run(self, artifact_id: str, *, announced: Outcome, because: str = "") -> DemoRelease:
        """Release an artifact and leave it alone. Raises `LocalStackError` when it does not end."""
        started = time.monotonic()
        run_id = await self._start(artifact_id)
        status = await self._wait(run_id, self._on_status)
        release = await self._settled(artifact_id, announced, status, started)
        return release.model_copy(update={"because": because})

    async def run_and_roll_back(self, artifact_id: str) -> RollbackTiming:
        """Release an artifact, and signal a rollback as soon as the mesh gives it 25 %."""
        started = time.monotonic()
        reached = asyncio.Event()

        def watch(status: ReleaseStatus) -> None:
            self._on_status(status)
            if status.split is not None and status.split.canary == ROLLBACK_WEIGHT:
                reached.set()

        run_id = await self._start(artifact_id)
        ending = asyncio.create_task(self._wait(run_id, watch))
        reaching = asyncio.create_task(reached.wait())
        try:
            await asyncio.wait({ending, reaching}, return_when=asyncio.FIRST_COMPLETED)
            milliseconds = await self._roll_back() if reached.is_set() else None
            status = await ending
        finally:
            ending.cancel()
            reaching.cancel()
        release = await self._settled(artifact_id, Outcome.ROLLED_BACK, status, started)
        return RollbackTiming(release.model_copy(update={"because": _SIGNALLED}), milliseconds)

    async def _roll_back(self) -> float:
        signalled = time.perf_counter()
        request = RollbackRequest(operator=OPERATOR, reason=_SIGNALLED)
        await self._client.signal_rollback(self._service, request)
        state = await self._mesh.read(self._service)
        while state.split.canary > 0:
            if time.perf_counter() - signalled > _SETTLE_SECONDS:
                raise LocalStackError(f"rollback: traffic still {state.split} after {_SETTLE_SECONDS:g} s.")
            state = await self._mesh.read(self._service)
        return (time.perf_counter() - signalled) * 1000

    async def _start(self, artifact_id: str) -> str:
        """Start a release, and return its run id; the one before may need a moment to let go of its lock."""
        request = ReleaseRequest(
            release_id=str(ULID()),
            service=self._service,
            artifact_id=artifact_id,
            plan=PLAN,
            operator=OPERATOR,
            reason="demonstration",
        )
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                return await self._client.start(request)
            except ReleaseActive:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_POLL_SECONDS)

    async def _wait(self, run_id: str, on_status: Callable[[ReleaseStatus], None]) -> ReleaseStatus:
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                return await self._client.wait(self._service, on_status=on_status, run_id=run_id)
        except TimeoutError as error:
            raise LocalStackError(
                f"release: no outcome after {_RELEASE_SECONDS:g} s; look at the worker's log."
            ) from error

    async def _settled(
        self, artifact_id: str, announced: Outcome, status: ReleaseStatus, started: float
    ) -> DemoRelease:
        """Wait until the release has let go of everything, and describe how it ended."""
        seconds = time.monotonic() - started
        deadline = time.monotonic() + _SETTLE_SECONDS
        while status.phase is not ReleasePhase.DONE:
            if time.monotonic() > deadline:
                raise LocalStackError(f"release: still {status.phase} after {_SETTLE_SECONDS:g} s.")
            await asyncio.sleep(_POLL_SECONDS)
            status = await self._client.status(self._service)
            self._on_status(status)
        return DemoRelease(
            artifact_id=artifact_id,
            announced=announced,
            outcome=status.outcome,
            reason=status.reason,
            seconds=seconds,
        )

"""The demonstration: four releases under checked traffic, on a stack of its own.

`v42` is promoted; `v43` is too slow and a gate takes it back; `v44` is taken back by hand in the middle;
`v45` does not fit and is refused before it gets any traffic.
"""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from weightshift.client import ReleaseClient
from weightshift.contracts.identity import Service
from weightshift.contracts.release import Outcome, ReleaseStatus
from weightshift.errors import LocalStackError
from weightshift.local import control
from weightshift.local.demo_artifacts import store_and_approve
from weightshift.local.demo_releases import DemoReleases
from weightshift.local.demo_report import DemoFigures, describe
from weightshift.local.traffic_process import Figures, TrafficProcess
from weightshift.mesh.open_mesh import open_mesh
from weightshift.registry.client import RegistryClient
from weightshift.settings import MeshSettings, RegistrySettings, TemporalSettings

SERVICE = Service(model="ranker", environment="local")
ARTIFACTS = ("v41", "v42", "v43", "v44", "v45")
REQUESTS_PER_SECOND = 120.0
_MARKER = ".weightshift-demo"
_LIMIT_SECONDS = 420.0
_TRAINING_SECONDS = 240.0
_FIRST_ANSWERS = 100
_FIRST_ANSWERS_SECONDS = 30.0


class DemoView(Protocol):
    """Where the demonstration shows what it does."""

    def note(self, text: str) -> None:
        """Show one line of the story."""

    def status(self, status: ReleaseStatus) -> None:
        """Show the state of the current release."""

    def traffic(self, figures: Figures) -> None:
        """Show the load generator's newest figures."""


async def run_demo(*, directory: Path, keep: bool, view: DemoView) -> DemoFigures:
    """Run the whole demonstration in `directory`, which is emptied first.

    With `keep` the stack stays up after a run that came to its end. Raises `LocalStackError`, also when
    a stack runs in `directory`.
    """
    started = time.monotonic()
    _empty(directory)
    try:
        async with asyncio.timeout(_LIMIT_SECONDS) as limit, _stack(directory, keep=keep) as envoy:
            return await _play(directory, envoy, view, started)
    except TimeoutError as error:
        after = f"after {time.monotonic() - started:.0f} s"
        what = f"not finished {after}" if limit.expired() else f"a step took too long, {after}"
        raise LocalStackError(f"demo: {what}; see {directory}/logs.") from error


def _empty(directory: Path) -> None:
    """Remove what an earlier demonstration left: every run tells the same story from its beginning.

    Only a directory that a demonstration marked as its own is ever emptied.
    """
    marker = directory / _MARKER
    if control.status(directory).running:
        raise LocalStackError(
            f"demo: one still runs; end it with `weightshift local down --dir {directory}`."
        )
    if directory.exists() and any(directory.iterdir()):
        if not marker.exists():
            raise LocalStackError(f"demo: {directory} holds something else; choose another --dir.")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    marker.write_text("This directory belongs to `weightshift demo`, which empties it at every start.\n")


@asynccontextmanager
async def _stack(directory: Path, *, keep: bool) -> AsyncIterator[str]:
    """Run a stack, train the models meanwhile, and yield the address of its Envoy."""
    kept = False
    try:
        owner = None if keep else os.getpid()
        state, _ = await asyncio.gather(control.up(directory, owner), _train(directory / "models"))
        if state.addresses is None:
            raise LocalStackError(f"demo: the stack ended at once; see {directory}/logs.")
        # What the caller's environment says is about another stack.
        os.environ.update(control.stack_environment(directory))
        yield state.addresses.envoy
        kept = keep
    finally:
        if not kept:
            await control.down(directory)


async def _train(directory: Path) -> None:
    """Train in a process of its own, which takes its memory with it when it ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "weightshift.local.demo_models", str(directory)),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_TRAINING_SECONDS):
            _, problem = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise LocalStackError(f"demo: training failed: {problem.decode(errors='replace')[-500:]}")


async def _play(directory: Path, envoy: str, view: DemoView, started: float) -> DemoFigures:
    view.note("the stack is up and five models are trained")
    settings = RegistrySettings()
    async with RegistryClient(
        url=settings.url, token=settings.token.get_secret_value(), timeout=settings.timeout
    ) as registry:
        for artifact_id in ARTIFACTS:
            await store_and_approve(registry, directory / "models" / artifact_id)
    view.note(f"{', '.join(ARTIFACTS)} are stored and approved")
    client = await ReleaseClient.connect(settings=TemporalSettings())
    mesh = open_mesh(MeshSettings())
    releases = DemoReleases(client=client, mesh=mesh, service=SERVICE, on_status=view.status)
    try:
        first = await releases.run("v41", announced=Outcome.PROMOTED)
        if not first.as_announced:
            raise LocalStackError(f"demo: v41 could not be brought up: {first.outcome}: {first.reason}")
        view.note("v41 serves; checked traffic starts and stays on until the end")
        return await _under_traffic(directory, envoy, releases, view, started)
    finally:
        await mesh.aclose()


async def _under_traffic(
    directory: Path, envoy: str, releases: DemoReleases, view: DemoView, started: float
) -> DemoFigures:
    async with TrafficProcess(
        url=f"{envoy}/predict",
        expectations=directory / "models" / "expectations.json",
        seconds=_LIMIT_SECONDS,
        rate=REQUESTS_PER_SECOND,
        on_figures=view.traffic,
    ) as traffic:
        await traffic.allow("v41")
        await traffic.wait_for(
            lambda figures: bool(figures["requests"] >= _FIRST_ANSWERS), seconds=_FIRST_ANSWERS_SECONDS
        )
        done = []
        for artifact_id, announced, because in (
            ("v42", Outcome.PROMOTED, "serves on stable"),
            ("v43", Outcome.ROLLED_BACK, "breached"),
        ):
            await traffic.allow(artifact_id)
            done.append(await releases.run(artifact_id, announced=announced, because=because))
            view.note(describe(done[-1]))
        await traffic.allow("v44")
        taken_back = await releases.run_and_roll_back("v44")
        view.note(describe(taken_back.release))
        # v45 is not allowed to answer: a single answer by it would count as misrouted.
        refused = await releases.run("v45", announced=Outcome.REFUSED, because="IncompatibleModel")
        view.note(describe(refused))
        return DemoFigures(
            releases=(*done, taken_back.release, refused),
            traffic=await traffic.stop(),
            rollback_ms=taken_back.milliseconds,
            seconds=time.monotonic() - started,
        )

"""Another engine takes whole releases by the calls of docs/engines.md, over the registry's HTTP service."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.workflow.harness import FAST_PLAN, IN_PLACE, Harness, time_skipping_server
from weightshift.contracts.identity import Cohort
from weightshift.contracts.instance import CandidatePhase, InstanceReport
from weightshift.contracts.release import Outcome
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.service import create_app
from weightshift.registry.tokens import Grant, MemoryTokens, Role

DOCUMENT = (Path(__file__).parents[2] / "docs/engines.md").read_text()
Body = dict[str, Any]


class StandInEngine:
    """Serves one set of weights, and knows nothing of releases; `unfit` artifacts do not load."""

    def __init__(self) -> None:
        self.serving: Body | None = None
        self.calls: list[str] = []
        self.unfit: set[str] = set()
        self._loaded: Body | None = None

    def fetch(self, artifact: Body) -> None:
        self.calls.append(f"fetch {artifact['artifact_id']}")

    def load(self, target: Body) -> None:
        self.calls.append(f"load {target['artifact_id']}")
        if target["artifact_id"] in self.unfit:
            raise ValueError("lm_head.weight is missing")
        self._loaded = target

    def swap(self) -> None:
        assert self._loaded is not None
        self.calls.append(f"swap {self._loaded['artifact_id']}")
        self.serving = self._loaded

    def adopt(self, target: Body) -> None:
        self.calls.append(f"adopt {target['artifact_id']}")
        self.serving = target


class Adapter:
    """Speaks for one engine: follows the cohort's target, and reports."""

    def __init__(self, http: httpx.AsyncClient, service: Body, cohort: str, instance_id: str) -> None:
        self.engine = StandInEngine()
        self.instance_id = instance_id
        self._http = http
        self._names = {"instance_id": instance_id, "boot_id": "1", "service": service, "cohort": cohort}
        self._path = f"{service['environment']}/{service['model']}"
        self.waited = False
        self._target: Body | None = None
        self._candidate: Body | None = None

    async def run(self) -> None:
        """Follow and report for ever."""
        while True:
            await self.follow(wait=0.02)

    async def follow(self, *, wait: float) -> None:
        """Look for a newer target for up to `wait` seconds, and take whatever may be taken."""
        known = self._target["revision"] if self._target else 0
        answer = await self._http.get(
            f"/v1/targets/{self._path}/{self._names['cohort']}",
            headers={"if-none-match": f'"{known}"'},
            params={"wait": wait},
        )
        if answer.status_code == httpx.codes.OK:
            assert answer.json()["revision"] > known
            self._target = answer.json()
        if self._target and self.engine.serving != self._target and not self._has_failed():
            await self._take(self._target)
        await self._report()

    async def _take(self, target: Body) -> None:
        serving = self.engine.serving
        if serving and serving["manifest_sha256"] == target["manifest_sha256"]:
            self.engine.adopt(target)
            self._candidate = self._progress("installed")
            return
        if serving and target["requires_grant"] and not await self._is_granted(target):
            self._candidate, self.waited = self._progress("waiting"), True
            return
        answer = await self._http.get(f"/v1/artifacts/{target['service']['model']}/{target['artifact_id']}")
        artifact = answer.raise_for_status().json()
        assert artifact["manifest_sha256"] == target["manifest_sha256"]
        steps = {
            "downloading": lambda: self.engine.fetch(artifact),
            "loading": lambda: self.engine.load(target),
            "committing": self.engine.swap,
        }
        for phase, step in steps.items():
            self._candidate = self._progress(phase)
            await self._report()
            try:
                step()
            except ValueError as error:
                told = {"type": "IncompatibleModel", "message": str(error), "phase": phase, "permanent": True}
                self._candidate = {**self._progress("failed"), "error": told}
                return
        self._candidate = self._progress("installed")

    async def _is_granted(self, target: Body) -> bool:
        answer = await self._http.get(f"/v1/grants/{self._path}")
        return any(
            one["revision"] == target["revision"] and self.instance_id in one["instance_ids"]
            for one in answer.raise_for_status().json()["grants"]
        )

    def _has_failed(self) -> bool:
        assert self._target is not None
        candidate = self._candidate or {}
        return (candidate.get("revision"), candidate.get("phase")) == (self._target["revision"], "failed")

    def _progress(self, phase: str) -> Body:
        assert self._target is not None
        return {
            "revision": self._target["revision"],
            "artifact_id": self._target["artifact_id"],
            "phase": phase,
        }

    async def _report(self) -> None:
        serving = self.engine.serving
        report: Body = {**self._names, "ready": serving is not None, "insecure_unsigned": True}
        if self._target:
            report["desired_revision"] = self._target["revision"]
        if self._candidate:
            report["candidate"] = self._candidate
        if serving:
            fields = ("revision", "artifact_id", "manifest_sha256", "feature_schema")
            actual = {name: serving[name] for name in fields}
            report["actual"] = {**actual, "generation": serving["revision"]}
        (await self._http.put(f"/v1/instances/{self.instance_id}", json=report)).raise_for_status()


class AdaptedFleet:
    """Two engines per cohort, each behind its adapter."""

    def __init__(self, http: httpx.AsyncClient, service: Body) -> None:
        names = [(cohort.value, f"{cohort}-{number}") for cohort in Cohort for number in range(2)]
        self.adapters = [Adapter(http, service, *one) for one in names]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for adapter in self.adapters:
                group.create_task(adapter.run())

    async def follow(self) -> None:
        for adapter in self.adapters:
            await adapter.follow(wait=0)

    def of(self, cohort: Cohort) -> list[StandInEngine]:
        return [one.engine for one in self.adapters if one.instance_id.startswith(cohort.value)]


def service_of(registry: MemoryRegistry, tokens: MemoryTokens) -> httpx.ASGITransport:
    return httpx.ASGITransport(create_app(registry=registry, tokens=tokens, bell=registry.bell))


@asynccontextmanager
async def released() -> AsyncIterator[tuple[Harness, AdaptedFleet]]:
    """A service of another engine, on which v41 is released."""
    async with time_skipping_server() as environment:
        harness = Harness(environment)
        tokens = MemoryTokens()
        bound = {"model": harness.service.model, "environment": harness.service.environment}
        token = tokens.issue(Grant(role=Role.RUNTIME, subject="engines", **bound))
        async with httpx.AsyncClient(
            transport=service_of(harness.registry, tokens),
            base_url="http://registry",
            headers={"authorization": f"Bearer {token}"},
        ) as http:
            fleet = AdaptedFleet(http, bound)
            harness.fleet = fleet  # type: ignore[assignment]
            async with harness.running():
                yield harness, fleet


async def test_another_engine_takes_a_whole_release() -> None:
    async with released() as (harness, fleet):
        assert (await harness.release("v42", FAST_PLAN)).outcome is Outcome.PROMOTED
        splits = dict.fromkeys(split.partition(",")[0] for split in harness.splits())
        assert list(splits) == ["100/0", "95/5", "75/25", "50/50", "0/100"]
        assert harness.splits()[-1] == "100/0"
        first, second = (["fetch v41", "load v41", "swap v41"], ["fetch v42", "load v42", "swap v42"])
        for engine in fleet.of(Cohort.STABLE):
            assert engine.calls == [*first, *second]
            assert engine.serving is not None
            assert engine.serving["artifact_id"] == "v42"


async def test_another_engine_waits_for_its_wave() -> None:
    async with released() as (harness, fleet):
        assert (await harness.release("v42", IN_PLACE)).outcome is Outcome.PROMOTED
        stable = [one for one in fleet.adapters if one.instance_id.startswith("stable")]
        assert all("swap v42" in one.engine.calls for one in stable)
        # Waves of one: whoever came second had seen its target, and had to wait for its grant.
        assert any(one.waited for one in stable)


async def test_an_engine_that_cannot_load_ends_the_release_in_its_own_words() -> None:
    async with released() as (harness, fleet):
        for engine in fleet.of(Cohort.CANARY):
            engine.unfit.add("v42")
        before = len(harness.splits())
        result = await harness.release("v42")
        assert result.outcome is Outcome.REFUSED
        assert "lm_head.weight is missing" in result.reason
        assert set(harness.splits()[before:]) <= {"100/0"}
        for engine in fleet.of(Cohort.STABLE):
            assert engine.serving is not None
            assert engine.serving["artifact_id"] == "v41"


# --- the page itself ----------------------------------------------------------------------------


def test_the_documented_report_is_one() -> None:
    (example,) = re.findall(r"```json report\n(.*?)```", DOCUMENT, re.DOTALL)
    report = InstanceReport.model_validate_json(example)
    assert json.loads(example).keys() <= InstanceReport.model_fields.keys()
    assert report.candidate is not None
    assert report.candidate.phase is CandidatePhase.LOADING


def test_every_phase_is_documented_in_its_order() -> None:
    (line,) = re.findall(r"`candidate\.phase` goes through (.*?)\.", DOCUMENT, re.DOTALL)
    assert re.findall(r"`([a-z-]+)`", line) == [one for one in CandidatePhase if one != "failed"]


async def test_every_documented_call_is_a_route_that_a_runtime_may_make() -> None:
    calls = re.findall(r"^\| `([A-Z]+) (/v1/[^`]+)`", DOCUMENT, re.MULTILINE)
    assert len(calls) == 4
    tokens = MemoryTokens()
    token = tokens.issue(Grant(role=Role.RUNTIME, subject="a", model="ranker", environment="test"))
    values = {"environment": "test", "model": "ranker", "cohort": "stable"}
    names = {**values, "artifact_id": "v1", "instance_id": "i"}
    transport, headers = service_of(MemoryRegistry(), tokens), {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://registry", headers=headers) as http:
        for method, path in calls:
            answer = await http.request(method, path.format(**names), json={} if method == "PUT" else None)
            kind = answer.json().get("error", {}).get("type")
            assert answer.status_code == 200 or kind in {"UnknownService", "UnknownArtifact", "InvalidInput"}

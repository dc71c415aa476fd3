import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from weightshift.contracts.approval import ArtifactUse, RejectedArtifact
from weightshift.contracts.evidence import AuditHead, AuditQuery, AuditRow
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import (
    CandidatePhase,
    CandidateProgress,
    InstanceError,
    InstanceReport,
    InstanceState,
    LoadedGeneration,
)
from weightshift.contracts.manifest import ArtifactRecord, ArtifactState
from weightshift.contracts.target import Target, Targets
from weightshift.errors import Conflict, RegistryUnreachable, UnknownArtifact
from weightshift.registry.chain import FIRST_PREVIOUS_HASH, Entry, chained, selects

Run = Callable[..., Any]
SERVICE = Service(model="ranker", environment="test")
DIGEST = "ab" * 32
RECORD = ArtifactRecord(
    model="ranker",
    artifact_id="v2",
    manifest_uri="s3://bucket/manifest",
    manifest_sha256=DIGEST,
    feature_schema="ranker-v1",
)


def test_artifacts_are_listed_and_shown(run: Run, registry: Any) -> None:
    registry.answers |= {"artifacts": (RECORD,), "artifact": RECORD}
    for arguments in (("list", "ranker"), ("show", "ranker", "v2")):
        result = run("artifact", *arguments)
        assert result.code == 0
        assert "pending" in result.out
        assert DIGEST in result.out
    registry.answers["artifacts"] = ()
    assert "no artifact is registered" in run("artifact", "list", "ranker").out


def test_decisions_reach_the_registry(run: Run, registry: Any) -> None:
    registry.answers["approve_artifact"] = RECORD.model_copy(update={"state": ArtifactState.READY})
    assert "ranker v2 is ready" in run("artifact", "approve", "ranker", "v2").out
    registry.answers["approve_artifact"] = RECORD.model_copy(update={"approvers": ("ada",)})
    assert "is pending, approved by ada" in run("artifact", "approve", "ranker", "v2").out
    registry.answers["reject_artifact"] = RejectedArtifact(
        **RECORD.model_dump(exclude={"state"}),
        state=ArtifactState.REJECTED,
        in_use=(
            ArtifactUse(
                service=SERVICE, cohort=Cohort.STABLE, desired_revision=7, instance_ids=("gpu-0", "gpu-1")
            ),
        ),
    )
    silent = run("artifact", "reject", "ranker", "v2")
    assert silent.code == 2
    assert "reason: give --reason" in silent.err
    out = run("artifact", "reject", "ranker", "v2", "--reason", "biased").out
    assert "is rejected" in out
    assert "test/ranker stable: desired at revision 7, served by gpu-0, gpu-1" in out
    assert ("reject_artifact", "ranker", "v2", "biased") in registry.calls


@pytest.mark.parametrize(
    ("state", "approvers", "step"),
    [
        (ArtifactState.PENDING, ("ada",), "next: weightshift artifact approve ranker v2"),
        (ArtifactState.READY, ("ada", "bob"), "next: weightshift release start ranker v2 -e ENVIRONMENT"),
    ],
)
def test_an_approval_says_what_is_next(
    run: Run, registry: Any, state: ArtifactState, approvers: tuple[str, ...], step: str
) -> None:
    changes = {"state": state, "approvers": approvers}
    registry.answers["approve_artifact"] = lambda *_: RECORD.model_copy(update=changes)
    assert run("artifact", "approve", "ranker", "v2").out.splitlines()[-1] == step


def test_what_others_wrote_is_printed_as_it_is(run: Run, registry: Any) -> None:
    odd = RECORD.model_copy(update={"approvers": ("[bold]bob[/x]", "e\x1b[2Jve")})
    registry.answers["approve_artifact"] = lambda *_: odd
    result = run("artifact", "approve", "ranker", "v2")
    assert result.code == 0
    assert "approved by [bold]bob[/x], e[2Jve;" in result.out


def test_targets_are_shown_per_cohort(run: Run, registry: Any) -> None:
    target = Target(
        service=SERVICE,
        cohort=Cohort.STABLE,
        revision=7,
        artifact_id="v2",
        manifest_sha256=DIGEST,
        feature_schema="ranker-v1",
    )
    registry.answers["targets"] = Targets(stable=target)
    out = run("target", "show", "ranker", "-e", "test").out
    assert "stable" in out
    assert "canary" not in out
    assert json.loads(run("target", "show", "ranker", "-e", "test", "--json").out)["stable"]["revision"] == 7


def instance(**changes: Any) -> InstanceReport:
    report = InstanceReport(instance_id="canary-0", boot_id="b", service=SERVICE, cohort=Cohort.CANARY)
    return report.model_copy(update=changes)


FAILED = CandidateProgress(
    revision=8,
    artifact_id="v3",
    phase=CandidatePhase.FAILED,
    error=InstanceError(
        type="IncompatibleModel", message="wrong shape", phase=CandidatePhase.VERIFYING, permanent=True
    ),
)
AGAIN = FAILED.model_copy(
    update={"phase": CandidatePhase.DOWNLOADING, "attempt": 7, "error": None, "last_error": FAILED.error}
)
ACTUAL = LoadedGeneration(
    revision=7, artifact_id="v2", manifest_sha256=DIGEST, feature_schema="ranker-v1", generation=1
)


@pytest.mark.parametrize(
    ("changes", "lost", "texts"),
    [
        ({}, False, ["canary-0", "not ready"]),
        ({"ready": True, "actual": ACTUAL}, False, [" ready ", "v2", "7"]),
        ({"ready": True}, True, ["lost"]),
        ({"ready": True, "insecure_unsigned": True}, False, ["ready, unsigned allowed"]),
        ({"ready": True, "draining": True}, False, ["draining"]),
        ({"memory_used_bytes": 3 << 29, "memory_limit_bytes": 8 << 30}, False, ["1.5 of 8.0 GiB"]),
        ({"candidate": FAILED}, False, ["v3 failed: wrong shape"]),
        ({"candidate": AGAIN}, False, ["v3 downloading, attempt 7, after: wrong shape"]),
    ],
)
def test_instances_show_what_they_serve(
    run: Run, registry: Any, changes: dict[str, Any], lost: bool, texts: list[str]
) -> None:
    state = InstanceState(report=instance(**changes), age_seconds=0.5, lost=lost)
    registry.answers["instances"] = (state,)
    result = run("instance", "list", "ranker", "-e", "test")
    assert result.code == 0
    for text in texts:
        assert text in result.out


def chain_of(length: int) -> list[AuditRow]:
    rows: list[AuditRow] = []
    for number in range(1, length + 1):
        entry = Entry(
            service=SERVICE,
            operation_id=f"R1:{number}",
            release_id="R1",
            step="publish",
            operator="ada",
            summary=f"canary -> v{number}",
        )
        rows.append(
            chained(
                entry,
                sequence=number,
                previous_hash=rows[-1].hash if rows else FIRST_PREVIOUS_HASH,
                recorded_at=datetime(2026, 1, number, tzinfo=UTC),
            )
        )
    return rows


def paging(rows: list[AuditRow]) -> Callable[[AuditQuery], tuple[AuditRow, ...]]:
    return lambda query: tuple(row for row in rows if selects(query, row))[: query.limit]


def test_audit_rows_are_shown(run: Run, registry: Any) -> None:
    registry.answers["audit_page"] = paging(chain_of(3))
    result = run("audit", "show", "ranker", "-e", "test", "--release", "R1")
    assert "canary -> v2" in result.out
    assert "there may be more" not in result.out
    expected = AuditQuery(environment="test", model="ranker", release_id="R1", limit=200)
    assert registry.calls[0] == ("audit_page", expected)


def test_audit_rows_are_filtered_and_paged(run: Run, registry: Any) -> None:
    registry.answers["audit_page"] = paging(chain_of(5))
    filters = ("--since", "2026-01-02T00:00:00Z", "--until", "2026-01-05T00:00:00+00:00", "--limit", "2")
    result = run("audit", "show", "ranker", "-e", "test", "--operator", "ada", *filters)
    assert "canary -> v3" in result.out
    assert "canary -> v4" not in result.out
    assert "add --after 3" in result.out
    assert registry.calls[0][1].operator == "ada"
    rest = run("audit", "show", "ranker", "-e", "test", *filters, "--after", "3")
    assert "canary -> v4" in rest.out
    assert "canary -> v5" not in rest.out


@pytest.mark.parametrize(
    "arguments", [("--since", "2026-01-02"), ("--until", "yesterday"), ("--limit", "5000"), ("--after", "-1")]
)
def test_a_filter_that_is_none_is_bad_input(run: Run, arguments: tuple[str, str]) -> None:
    assert run("audit", "show", "ranker", "-e", "test", *arguments).code == 2


def test_a_whole_chain_is_verified_and_its_head_shown(run: Run, registry: Any, tmp_path: Path) -> None:
    rows = chain_of(3)
    registry.answers["audit_page"] = paging(rows)
    result = run("audit", "verify", "-e", "test")
    assert (result.code, f"3 rows, head {rows[-1].hash}" in result.out) == (0, True)
    registry.answers["audit_head"] = AuditHead(environment="test", sequence=2, hash=rows[1].hash)
    exported = tmp_path / "head.json"
    exported.write_text(run("audit", "head", "-e", "test", "--json").out)
    assert run("audit", "verify", "-e", "test", "--head", str(exported)).code == 0


def test_a_chain_of_nothing_asks_for_the_name(run: Run, registry: Any) -> None:
    registry.answers["audit_page"] = paging([])
    result = run("audit", "verify", "-e", "tset")
    assert result.code == 0
    assert "nothing is recorded in tset; check the environment's name" in result.out


def test_a_broken_chain_names_its_first_broken_row(run: Run, registry: Any, tmp_path: Path) -> None:
    rows = chain_of(5)
    registry.answers["audit_page"] = paging(
        [*rows[:2], rows[2].model_copy(update={"operator": "eve"}), *rows[3:]]
    )
    result = run("audit", "verify", "-e", "test")
    assert (result.code, "broken at row 3: it was changed" in result.out) == (1, True)
    assert json.loads(run("audit", "verify", "-e", "test", "--json").out)["broken"]["sequence"] == 3
    exported = tmp_path / "head.json"
    exported.write_text(AuditHead(environment="test", sequence=5, hash=rows[4].hash).model_dump_json())
    registry.answers["audit_page"] = paging(rows[:4])
    cut = run("audit", "verify", "-e", "test", "--head", str(exported))
    (tmp_path / "other.json").write_text("{}")
    other = run("audit", "verify", "-e", "test", "--head", str(tmp_path / "other.json"))
    assert (other.code, "weightshift audit head --json" in other.err) == (2, True)
    assert (cut.code, "broken at row 5: it is missing" in cut.out) == (1, True)


def test_a_command_on_the_database_says_where_its_address_belongs(run: Run) -> None:
    for arguments, variable in (
        (("token", "list"), "WEIGHTSHIFT_REGISTRY_DSN"),
        (("registry", "recover", "-e", "test"), "WEIGHTSHIFT_REGISTRY_DSN"),
        (("registry", "migrate"), "WEIGHTSHIFT_REGISTRY_OWNER_DSN"),
    ):
        result = run(*arguments)
        assert (result.code, f"{variable} is not set" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("failure", "code"), [(UnknownArtifact(), 2), (Conflict(), 4), (RegistryUnreachable(), 5)]
)
def test_failures_end_with_their_exit_code(run: Run, registry: Any, failure: Exception, code: int) -> None:
    registry.answers["artifact"] = failure
    result = run("artifact", "show", "ranker", "v2")
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(f"error: {failure}")
    assert result.err.count("\n") == 1

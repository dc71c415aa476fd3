"""Starting what serves already: nothing happens, unless it is meant."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.cli.records import SERVICE, record
from weightshift.contracts.identity import Cohort
from weightshift.contracts.release import Outcome, ReleaseRecord
from weightshift.contracts.target import Target, Targets
from weightshift.errors import RegistryUnreachable

Run = Callable[..., Any]
START = ("release", "start", "ranker", "v2", "-e", "test")


def serving(artifact_id: str) -> Targets:
    stable = Target(
        service=SERVICE,
        cohort=Cohort.STABLE,
        revision=3,
        artifact_id=artifact_id,
        manifest_sha256="a" * 64,
        feature_schema="ranker-v1",
        serve_floor=1,
    )
    return Targets(stable=stable)


def test_what_serves_already_is_not_released_once_more(run: Run, releases: Any, registry: Any) -> None:
    registry.answers |= {
        "targets": serving("v2"),
        "releases": (record("v3", Outcome.ROLLED_BACK), record("v2", Outcome.PROMOTED)),
    }
    result = run(*START)
    assert (result.code, releases.calls) == (0, [])
    assert "v2 serves test/ranker already, by release R-v2; nothing was changed" in result.out
    assert json.loads(run(*START, "--wait", "--json").out)["release_id"] == "R-v2"
    assert run(*START, "--again").code == 0
    assert [name for name, *_ in releases.calls] == ["start"]


@pytest.mark.parametrize(
    ("stable", "records"),
    [
        ("v1", (record("v1"), record("v2", Outcome.PROMOTED))),
        ("v2", (record("v3", None), record("v2", Outcome.PROMOTED))),
        ("v2", (record("v2", None), record("v1"))),
        ("v2", (record("v2", Outcome.ABANDONED), record("v1"))),
        ("v2", ()),
    ],
    ids=["another serves", "another is under way", "under way itself", "never promoted", "unknown"],
)
def test_anything_else_is_left_to_admission(
    run: Run, releases: Any, registry: Any, stable: str, records: tuple[ReleaseRecord, ...]
) -> None:
    registry.answers |= {"targets": serving(stable), "releases": records}
    assert run(*START).code == 0
    assert [name for name, *_ in releases.calls] == ["start"]


def test_a_registry_that_is_away_is_no_obstacle(run: Run, releases: Any, registry: Any) -> None:
    registry.answers["targets"] = RegistryUnreachable("The registry does not answer")
    result = run(*START)
    assert (result.code, [name for name, *_ in releases.calls]) == (0, ["start"])
    assert "The registry does not answer" in result.err

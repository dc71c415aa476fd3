"""Targets, fences and waves hold only numbers that reports and the database hold too."""

from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from weightshift.contracts.base import describe_problems
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.target import Target
from weightshift.contracts.wave import WaveGrant
from weightshift.errors import RegistryUnreachable
from weightshift.registry.client import RegistryClient

SERVICE = Service(model="ranker", environment="test")
HIGHEST = (1 << 53) - 1


def target(**fields: Any) -> Target:
    return Target(
        **{
            "service": SERVICE,
            "cohort": Cohort.STABLE,
            "revision": 7,
            "artifact_id": "v1",
            "manifest_sha256": "0" * 64,
            "feature_schema": "ranker-v1",
            **fields,
        }
    )


def test_the_highest_revision_can_be_reported() -> None:
    highest = target(revision=HIGHEST, serve_floor=HIGHEST)
    report = InstanceReport(
        instance_id="a",
        boot_id="b",
        service=SERVICE,
        cohort=Cohort.STABLE,
        desired_revision=highest.revision,
    )
    assert report.desired_revision == HIGHEST


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"revision": HIGHEST + 1}, "revision"),
        ({"revision": 1 << 63}, "revision"),
        ({"revision": 0}, "revision"),
        ({"serve_floor": 8}, "serve_floor: Value error, is above the revision"),
        ({"serve_floor": 1 << 63}, "serve_floor"),
        ({"serve_floor": -1}, "serve_floor"),
    ],
)
def test_a_target_out_of_bounds_is_refused_by_the_name_of_its_field(
    fields: dict[str, int], named: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        target(**fields)
    assert describe_problems(refused.value).startswith(named)


async def test_a_client_says_which_field_it_cannot_take() -> None:
    absurd = target().model_dump(mode="json") | {"revision": 1 << 63}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=absurd))
    client = RegistryClient(url="http://registry", token="a" * 43, transport=transport)
    with pytest.raises(RegistryUnreachable, match=r"not readable \(revision: .*\); compare the versions"):
        await client.target(SERVICE, Cohort.STABLE)
    await client.aclose()


@pytest.mark.parametrize("field", ["epoch", "sequence"])
def test_a_fence_out_of_bounds_is_refused_by_the_name_of_its_field(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Fence(**{"epoch": 1, "sequence": 1, field: 1 << 63})
    assert Fence.above_all(1) > Fence(epoch=1, sequence=1)


def test_a_fence_of_an_emergency_reads_as_one() -> None:
    first = Fence.above_all(3)
    second = Fence(epoch=3, sequence=first.sequence + 1)
    assert [str(fence) for fence in (first, second)] == ["3.break-glass", "3.break-glass+1"]
    assert str(Fence(epoch=3, sequence=first.sequence - 1)) == f"3.{first.sequence - 1}"


def test_a_wave_out_of_bounds_is_refused_by_the_name_of_its_field() -> None:
    with pytest.raises(ValidationError, match="revision"):
        WaveGrant(
            service=SERVICE,
            revision=1 << 63,
            instance_ids=("a",),
            fence=Fence(epoch=1, sequence=1),
            expires_at="2026-01-01T00:00:00Z",
        )

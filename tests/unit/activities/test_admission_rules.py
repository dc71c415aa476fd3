"""Who may be admitted."""

import pytest

from activities.admission_rules import schema_change
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import ReleaseRequest
from weightshift.contracts.target import Target
from weightshift.errors import FeatureSchemaChanged
from weightshift.way_back import going_back_key

SERVICE = Service(model="ranker", environment="prod")
STABLE = Target(
    service=SERVICE,
    cohort=Cohort.STABLE,
    revision=7,
    artifact_id="v41",
    manifest_sha256="0" * 64,
    feature_schema="ranker-v1",
    serve_floor=7,
)
REQUEST = ReleaseRequest(release_id="R1", service=SERVICE, artifact_id="v42", operator="ci")


def candidate(feature_schema: str) -> ArtifactRecord:
    return ArtifactRecord(
        model="ranker",
        artifact_id="v42",
        manifest_uri="memory://v42",
        manifest_sha256="1" * 64,
        feature_schema=feature_schema,
    )


def test_the_same_schema_and_a_first_release_are_no_change() -> None:
    assert schema_change(REQUEST, candidate("ranker-v1"), STABLE) is None
    assert schema_change(REQUEST, candidate("ranker-v2"), None) is None


def test_another_schema_is_refused_by_name() -> None:
    with pytest.raises(FeatureSchemaChanged, match=r"v41 .* ranker-v1, and v42 takes ranker-v2; add --allow"):
        schema_change(REQUEST, candidate("ranker-v2"), STABLE)


@pytest.mark.parametrize(
    "said",
    [{"allow_schema_change": True}, {"request_key": going_back_key("R0")}],
    ids=["allowed", "way back"],
)
def test_another_schema_is_told_where_callers_are_ready_or_know_it(said: dict[str, object]) -> None:
    told = schema_change(REQUEST.model_copy(update=said), candidate("ranker-v2"), STABLE)
    assert told is not None
    assert told.endswith("callers have to be ready for it")

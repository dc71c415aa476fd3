"""Business gates whose counters are not counted: seen before a release starts."""

from collections.abc import Mapping

import pytest

from activities.plan_checks import PlanChecks
from activities.traffic import Missing
from tests.workflow.twins import ToldTraffic
from weightshift.analysis.sizing import ObservedTraffic
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.plan import Gate, Metric, Plan
from weightshift.contracts.release import ReleaseRequest
from weightshift.contracts.target import Target, Targets
from weightshift.errors import InvalidPlan, QueryRefused

SERVICE = Service(model="ranker", environment="test")
BAD = 'abandoned_total{revision="$revision"}'
TOTAL = 'carts_total{revision="$revision"}'
STABLE = Target(
    service=SERVICE,
    cohort=Cohort.STABLE,
    revision=7,
    artifact_id="v41",
    manifest_sha256="0" * 64,
    feature_schema="s",
)


async def told(
    lacks: Mapping[str, Missing | QueryRefused], *, traffic: bool = True, **limit: float
) -> tuple[str, ...]:
    """What is remarked of a plan with one business gate while its selectors lack this."""
    observer = ToldTraffic()
    observer.lacks = dict(lacks)
    if traffic:
        observer.told = ObservedTraffic(requests_per_second=600, error_fraction=0.01)
    gate = Gate(metric=Metric.BUSINESS, label="abandoned", bad=BAD, total=TOTAL, **limit)
    request = ReleaseRequest(
        release_id="R1",
        service=SERVICE,
        artifact_id="v42",
        plan=Plan(gates=(Gate(metric=Metric.ERROR_RATE, maximum=0.03), gate)),
        operator="ci",
    )
    checks = PlanChecks(traffic=observer, highest_load=2.0)
    return await checks.remarks(request, Targets(stable=STABLE), ())


@pytest.mark.parametrize(
    ("lacks", "problem"),
    [
        ({BAD: Missing.COUNTER}, "knows no such counter as in `bad`, abandoned_total"),
        ({TOTAL: Missing.COUNTER}, "knows no such counter as in `total`, carts_total"),
        ({TOTAL: Missing.SERIES}, "`total` finds nothing on stable, carts_total"),
    ],
)
async def test_a_comparison_of_what_nobody_counts_is_refused(lacks: dict[str, Missing], problem: str) -> None:
    with pytest.raises(InvalidPlan, match=f"gate business abandoned ratio 1.2: .*{problem}") as refused:
        await told(lacks, ratio=1.2)
    assert str(refused.value).count("gate business") == 1, "once, not for every stage"
    (remark,) = [one for one in await told(lacks, maximum=0.05) if "gate business" in one]
    assert problem in remark, "a limit is told of"
    assert not any("business" in one for one in await told(lacks, ratio=1.2, traffic=False))


async def test_nothing_bad_so_far_is_no_problem() -> None:
    (remark,) = [one for one in await told({BAD: Missing.SERIES}, ratio=1.2) if "gate business" in one]
    assert "`bad` finds nothing on stable" in remark
    assert not any("gate business" in one for one in await told({}, ratio=1.2))


@pytest.mark.parametrize("traffic", [True, False])
@pytest.mark.parametrize("limit", [{"ratio": 1.2}, {"maximum": 0.05}])
async def test_a_selector_that_prometheus_refuses_is_refused(traffic: bool, limit: dict[str, float]) -> None:
    refusal = QueryRefused("Prometheus refuses the query: 1:9: parse error")
    with pytest.raises(InvalidPlan, match=r"gate business abandoned .*: mend `total`, carts_total.*1:9"):
        await told({TOTAL: refusal}, traffic=traffic, **limit)

"""A query that the metrics store refuses as it is, in a stage that is judged."""

from activities.observation import StageObservation
from tests.unit.activities.test_observation import GATE, START, WrittenSamples, observation
from weightshift.analysis.series import Series
from weightshift.contracts.plan import Gate, Metric
from weightshift.contracts.verdict import GateVerdict, StageOutcome
from weightshift.errors import QueryRefused

BUSINESS = Gate(
    metric=Metric.BUSINESS,
    label="abandoned",
    maximum=0.05,
    bad='abandoned_total{revision="$revision"} by',
    total='carts_total{revision="$revision"}',
)


class RefusingBusiness(WrittenSamples):
    """Refuses one selector of a business gate and knows none of the other's."""

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        if selector.startswith("abandoned"):
            raise QueryRefused("Prometheus refuses the query: 1:9: parse error")
        return await super().select(selector, end=end)


async def test_a_business_query_that_is_refused_blinds_its_own_gate_alone() -> None:
    asked = observation()
    stage = asked.stage.model_copy(update={"gates": (GATE, BUSINESS)})
    asked = asked.model_copy(update={"stage": stage})
    healthy = await StageObservation(asked, RefusingBusiness(good=50)).judge_due_intervals(START + 40)
    errors, business, _ = healthy.gates
    assert (errors.verdict, business.verdict) == (GateVerdict.HEALTHY, GateVerdict.NO_DATA)
    assert business.detail == "Prometheus refuses the query: 1:9: parse error"
    assert healthy.outcome is StageOutcome.INCONCLUSIVE
    failing = StageObservation(asked, RefusingBusiness(good=0, bad=50))
    verdict = await failing.judge_due_intervals(START + 11)
    assert (verdict.outcome, verdict.reason) == (StageOutcome.BREACH, "gate hard breached")


async def test_a_query_of_our_own_that_is_refused_is_inconclusive() -> None:
    reader = WrittenSamples(good=50)
    reader.failure = QueryRefused("Prometheus refuses the query: too many samples")
    verdict = await StageObservation(observation(), reader).judge_due_intervals(START + 20)
    assert (verdict.outcome, verdict.reason) == (StageOutcome.INCONCLUSIVE, str(reader.failure))

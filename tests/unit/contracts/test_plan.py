"""Plans and gates: what is refused, and what a preset becomes."""

from datetime import timedelta

import pytest
from pydantic import ValidationError

from weightshift.contracts.plan import Gate, Metric, Plan
from weightshift.contracts.presets import PRESETS

BUSINESS = {
    "metric": "business",
    "label": "abandoned",
    "ratio": 1.2,
    "bad": 'carts_abandoned_total{revision="$revision"}',
    "total": 'carts_total{revision="$revision",model="$model"}',
}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_plan(name: str) -> None:
    assert Plan.model_validate({"preset": name}).stages[-1].weight == 100


def test_the_standard_preset_is_the_default_plan() -> None:
    assert Plan.model_validate({"preset": "standard"}) == Plan()


def test_what_a_plan_states_wins_over_its_preset() -> None:
    plan = Plan.model_validate({"preset": "careful", "window": "5m"})
    assert plan.window == timedelta(minutes=5)
    assert [stage.weight for stage in plan.stages] == [1, 5, 10, 25, 50, 100]


@pytest.mark.parametrize("preset", ["quick", 3, ["fast"]])
def test_an_unknown_preset_is_refused(preset: object) -> None:
    with pytest.raises(ValidationError, match="preset: one of fast, standard, careful"):
        Plan.model_validate({"preset": preset})


@pytest.mark.parametrize(
    ("gate", "name"),
    [
        ({"metric": "error_rate", "maximum": 0.03}, "error_rate <= 0.03"),
        ({"metric": "latency", "ratio": 1.1}, "p99 ratio 1.1"),
        ({"metric": "reject_rate", "ratio": 1.5}, "reject_rate ratio 1.5"),
        ({"metric": "score_drift", "maximum": 0.05}, "score_drift <= 0.05"),
        ({"metric": "device_memory", "maximum": 0.95}, "device_memory <= 0.95"),
        (BUSINESS, "business abandoned ratio 1.2"),
    ],
)
def test_gates_have_readable_names(gate: dict[str, object], name: str) -> None:
    assert Gate.model_validate(gate).name == name


def test_drift_is_a_comparison_though_it_has_a_maximum() -> None:
    assert not Gate(metric=Metric.SCORE_DRIFT, maximum=0.05).is_absolute


@pytest.mark.parametrize(
    ("gate", "problem"),
    [
        ({"metric": "error_rate"}, "exactly one of"),
        ({"metric": "score_drift", "ratio": 1.1}, "limited by `maximum`"),
        ({"metric": "device_memory", "maximum": 95}, "a fraction below 1"),
        ({"metric": "error_rate", "maximum": 0.1, "label": "x"}, "are for business"),
        ({**BUSINESS, "label": None}, "business needs `label`"),
        ({**BUSINESS, "bad": "carts_abandoned_total"}, r"a selector with \$revision"),
        ({**BUSINESS, "bad": 'x{revision="$revision",pod="$pod"}'}, r"a selector with \$revision"),
        ({**BUSINESS, "bad": 'x{revision="$revision",path=~"/cart$"}'}, "a dollar sign itself"),
    ],
)
def test_a_gate_that_cannot_be_judged_is_refused(gate: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Gate.model_validate(gate)


def test_a_memory_mark_alone_judges_no_request() -> None:
    with pytest.raises(ValidationError, match="at least one absolute gate on requests"):
        Plan.model_validate({"gates": [{"metric": "device_memory", "maximum": 0.9}]})


def test_in_place_ends_below_everything_and_an_idle_swap_at_everything() -> None:
    plan = Plan.model_validate({"stages": [5, 25], "promotion": "in-place", "wave": 2})
    assert (plan.stages[-1].weight, plan.wave, plan.on_partial) == (25, 2, "proportional")
    with pytest.raises(ValidationError, match="the last weight is below 100"):
        Plan.model_validate({"promotion": "in-place"})
    with pytest.raises(ValidationError, match="the last weight must be 100"):
        Plan.model_validate({"stages": [5, 25]})


@pytest.mark.parametrize("fields", [{"wave": 0}, {"wave": 1_001}, {"approvals": 21}, {"on_partial": "hope"}])
def test_figures_of_people_and_waves_are_bounded(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Plan.model_validate(fields)

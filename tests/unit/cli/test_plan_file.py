from pathlib import Path

import pytest

from weightshift.cli.plan_file import read_plan
from weightshift.contracts.plan import Plan
from weightshift.errors import InvalidPlan


def plan_file(directory: Path, text: str) -> Path:
    path = directory / "plan.yaml"
    path.write_text(text)
    return path


def test_yaml_and_json_say_the_same(tmp_path: Path) -> None:
    yaml = read_plan(plan_file(tmp_path, "stages: [10, 100]\nretain: 5m\n"))
    assert yaml == read_plan(plan_file(tmp_path, '{"stages": [10, 100], "retain": "5m"}'))
    assert [stage.weight for stage in yaml.stages] == [10, 100]


def test_an_empty_file_is_the_default_plan(tmp_path: Path) -> None:
    assert read_plan(plan_file(tmp_path, "")) == Plan()


def test_every_problem_is_shown_with_its_field(tmp_path: Path) -> None:
    text = """
stages: [5, {weight: 500}]
windwo: 4s
window: 10 mins
retain: [5]
gates: [{metric: latnecy, maximum: 1}]
"""
    with pytest.raises(InvalidPlan) as refusal:
        read_plan(plan_file(tmp_path, text))
    no_duration = "must be a length of time, such as 90, 90s, 10m, 1.5h or 2d"
    for part in (
        "stages.1.weight: must be less than or equal to 100",
        "windwo: there is no such field",
        f"window: {no_duration}",
        f"retain: {no_duration}",
        "gates.0.metric: must be 'error_rate'",
    ):
        assert part in str(refusal.value)
    assert str(refusal.value).count("gates") == 1, "a list that lacks what was unusable is no second problem"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("window: -5", "window: must not be negative"),
        ("interval: 0", "interval: must be longer than nothing"),
        ("retain: 99999999", "retain: must be at most 366 days"),
        ("gates: [{maximum: 1}]", "gates.0.metric: is required"),
        ("notify: ['../x']", "notify.0: must be 1 to 100 letters, digits, dots, dashes and underscores"),
    ],
)
def test_problems_are_told_in_words_of_plans(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidPlan) as refusal:
        read_plan(plan_file(tmp_path, text))
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("stages: [100, 5]", "weights must rise"),
        ("window: 1s\nwindow: 2s", "'window' is given twice"),
        ("stages: [", "neither YAML nor JSON"),
        ("- 5", "must be a mapping of fields"),
        ("!!python/object/apply:os.system [true]", "neither YAML nor JSON"),
    ],
)
def test_unusable_plans_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidPlan, match=problem):
        read_plan(plan_file(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidPlan, match=r"absent\.yaml cannot be read"):
        read_plan(tmp_path / "absent.yaml")

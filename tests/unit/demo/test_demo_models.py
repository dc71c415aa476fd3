import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from weightshift.local.demo_models import (
    FEATURES,
    RECIPES,
    REQUESTS,
    TOP,
    ModelRecipe,
    build_models,
    train,
)

SMALL = [recipe for recipe in RECIPES if max(recipe.hidden) < 1000]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    build_models(directory, SMALL)
    return directory


@pytest.fixture(scope="module")
def expectations(models: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((models / "expectations.json").read_text())
    return document


def test_an_artifact_holds_weights_widths_and_normalisation(models: Path) -> None:
    directory = models / "v41"
    assert {path.name for path in directory.iterdir()} == {
        "model.safetensors",
        "config.json",
        "normalisation.json",
    }
    shapes = {name: tuple(value.shape) for name, value in load_file(directory / "model.safetensors").items()}
    assert shapes == {
        "layers.0.weight": (64, FEATURES),
        "layers.0.bias": (64,),
        "layers.1.weight": (32, 64),
        "layers.1.bias": (32,),
        "head.weight": (1, 32),
        "head.bias": (1,),
    }
    assert json.loads((directory / "config.json").read_text()) == {"hidden": [64, 32]}
    normalisation = json.loads((directory / "normalisation.json").read_text())
    assert len(normalisation["mean"]) == len(normalisation["std"]) == FEATURES
    assert min(normalisation["std"]) > 0


def test_one_artifact_does_not_fit_the_architecture(models: Path) -> None:
    weights = load_file(models / "v45" / "model.safetensors")
    assert tuple(weights["layers.0.weight"].shape) == (64, 82)


def test_expected_answers_follow_from_the_written_artifact(
    models: Path, expectations: dict[str, Any]
) -> None:
    for artifact_id, answers in expectations["answers"].items():
        for body, expected in zip(expectations["bodies"], answers, strict=True):
            assert answer_by_hand(models / artifact_id, body) == within_tolerance(expected)


def test_no_two_models_give_the_same_answer(expectations: dict[str, Any]) -> None:
    answers = expectations["answers"]
    assert set(answers) == {"v41", "v42", "v44"}
    for position in range(REQUESTS):
        given = [json.dumps(answers[name][position]) for name in answers]
        assert len(set(given)) == len(given)


def test_training_again_gives_the_same_weights() -> None:
    recipe = ModelRecipe("again", hidden=(8,), seed=5, steps=3)
    first, second = train(recipe).network.state_dict(), train(recipe).network.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def answer_by_hand(directory: Path, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Answer a request from the files alone, in the serving contract's own words."""
    weights = load_file(directory / "model.safetensors")
    normalisation = json.loads((directory / "normalisation.json").read_text())
    rows = torch.tensor([[*candidate, *body["context"]] for candidate in body["candidates"]])
    values = (rows - torch.tensor(normalisation["mean"])) / torch.tensor(normalisation["std"])
    for layer in range(2):
        values = torch.relu(values @ weights[f"layers.{layer}.weight"].T + weights[f"layers.{layer}.bias"])
    scores = (values @ weights["head.weight"].T + weights["head.bias"]).flatten().tolist()
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[:TOP]
    return [{"index": index, "score": scores[index]} for index in best]


def within_tolerance(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"index": item["index"], "score": pytest.approx(item["score"], rel=1e-4, abs=1e-4)} for item in items
    ]

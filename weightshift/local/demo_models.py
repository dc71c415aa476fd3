"""The models of the demonstration: what an ML team's training code would do, on synthetic ranking data.

Every model scores candidates from 80 candidate features followed by 8 context features. Training is
seeded, so every machine gets the same five artifacts:

- `v41`, `v42`, `v44`: small networks with clearly different answers;
- `v43`: a network so wide that it is much slower to answer;
- `v45`: trained on 82 features, so it does not fit the serving architecture.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

CANDIDATE_FEATURES = 80
CONTEXT_FEATURES = 8
FEATURES = CANDIDATE_FEATURES + CONTEXT_FEATURES
CANDIDATES_PER_REQUEST = 10
TOP = 3
REQUESTS = 64

# Two runs may add up floats in another order, so a request counts as a check only where every
# model separates its best candidates by far more than the tolerance of that check.
_CLEAR_GAP = 2e-3


@dataclass(frozen=True)
class ModelRecipe:
    """How one model is trained: layer widths, seed, optimiser steps, requests per step."""

    artifact_id: str
    hidden: tuple[int, ...]
    seed: int
    steps: int = 60
    batch: int = 64
    learning_rate: float = 0.05
    features: int = FEATURES


RECIPES = (
    ModelRecipe("v41", hidden=(64, 32), seed=41),
    ModelRecipe("v42", hidden=(64, 32), seed=42),
    ModelRecipe("v43", hidden=(4096, 4096), seed=43, steps=4, batch=8, learning_rate=1e-4),
    ModelRecipe("v44", hidden=(96, 48), seed=44),
    ModelRecipe("v45", hidden=(64, 32), seed=45, features=82),
)


class RankingNetwork(nn.Module):
    """Linear and ReLU per hidden width, then one linear head: `[rows, features] -> [rows]`."""

    def __init__(self, features: int, hidden: Sequence[int]) -> None:
        super().__init__()
        widths = [features, *hidden]
        self.layers = nn.ModuleList(nn.Linear(width, next_width) for width, next_width in pairwise(widths))
        self.head = nn.Linear(widths[-1], 1)

    def forward(self, rows: Tensor) -> Tensor:
        """Score normalised rows."""
        for layer in self.layers:
            rows = torch.relu(layer(rows))
        scores: Tensor = self.head(rows)
        return scores.squeeze(-1)


@dataclass(frozen=True)
class TrainedModel:
    """A network with the normalisation it was trained under (`[features]` each)."""

    recipe: ModelRecipe
    network: RankingNetwork
    mean: Tensor
    std: Tensor

    @torch.inference_mode()
    def score(self, raw: Tensor) -> Tensor:
        """Score raw rows: `[requests, candidates, features] -> [requests, candidates]`."""
        scores: Tensor = self.network((raw - self.mean) / self.std)
        return scores


def build_models(directory: Path, recipes: Sequence[ModelRecipe] = RECIPES) -> None:
    """Train every model into `directory/ARTIFACT_ID`, and write what each answers beside them.

    `expectations.json` is the file that `weightshift.local.traffic` checks answers against.
    """
    models = [train(recipe) for recipe in recipes]
    for model in models:
        write_artifact(model, directory / model.recipe.artifact_id)
    fitting = [model for model in models if model.recipe.features == FEATURES]
    expectations = json.dumps(expected_answers(fitting))
    (directory / "expectations.json").write_text(expectations, encoding="utf-8")


def train(recipe: ModelRecipe) -> TrainedModel:
    """Fit a network to the clicks of synthetic users, as a softmax over each request's candidates."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = RankingNetwork(recipe.features, recipe.hidden)
        for layer in [*network.layers, network.head]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        taste = torch.randn(recipe.features) / recipe.features**0.5
        sample = _raw_rows(1024, recipe.features).flatten(0, 1)
        mean, std = sample.mean(dim=0), sample.std(dim=0)
        optimiser = torch.optim.SGD(network.parameters(), lr=recipe.learning_rate)
        for _ in range(recipe.steps):
            rows = (_raw_rows(recipe.batch, recipe.features) - mean) / std
            clicked = (rows @ taste + 0.1 * torch.randn(rows.shape[:2])).argmax(dim=1)
            loss = nn.functional.cross_entropy(network(rows), clicked)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return TrainedModel(recipe=recipe, network=network.eval(), mean=mean, std=std)


def write_artifact(model: TrainedModel, directory: Path) -> None:
    """Write weights, widths and normalisation, the three files of a `ranker` artifact."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(model.network.state_dict(), directory / "model.safetensors")
    documents = {
        "config.json": {"hidden": list(model.recipe.hidden)},
        "normalisation.json": {"mean": model.mean.tolist(), "std": model.std.tolist()},
    }
    for name, document in documents.items():
        (directory / name).write_text(json.dumps(document), encoding="utf-8")


def expected_answers(models: Sequence[TrainedModel]) -> dict[str, object]:
    """Return `{"bodies": [...], "answers": {artifact_id: [items, ...]}}` for `REQUESTS` requests."""
    # Bodies travel with four decimals, so the scores must come from exactly these values.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        raw = torch.round(_raw_rows(REQUESTS * 4, FEATURES), decimals=4)
    scores = {model.recipe.artifact_id: model.score(raw) for model in models}
    clear = torch.stack([_is_clear(values) for values in scores.values()]).all(dim=0)
    chosen = clear.nonzero().flatten()[:REQUESTS]
    return {
        "bodies": list(_bodies(raw[chosen])),
        "answers": {name: [_items(row) for row in values[chosen]] for name, values in scores.items()},
    }


def _raw_rows(requests: int, features: int) -> Tensor:
    """Draw `[requests, candidates, features]`; the last 8 features are the request's context."""
    rows = torch.randn(requests, CANDIDATES_PER_REQUEST, features)
    rows[..., -CONTEXT_FEATURES:] = rows[:, :1, -CONTEXT_FEATURES:]
    spread = torch.linspace(0.5, 2.0, features)
    return rows * spread + torch.linspace(-1.0, 1.0, features)


def _is_clear(scores: Tensor) -> Tensor:
    """Tell for each request whether its best candidates are well apart: `[requests] of bool`."""
    best = scores.sort(dim=1, descending=True).values[:, : TOP + 1]
    return (best[:, :-1] - best[:, 1:]).min(dim=1).values > _CLEAR_GAP


def _bodies(raw: Tensor) -> Iterator[dict[str, object]]:
    for request in raw.double():
        rows = [[round(value, 4) for value in row] for row in request.tolist()]
        yield {
            "context": rows[0][CANDIDATE_FEATURES:],
            "candidates": [row[:CANDIDATE_FEATURES] for row in rows],
            "top": TOP,
        }


def _items(scores: Tensor) -> list[dict[str, object]]:
    best = scores.sort(descending=True)
    pairs = zip(best.indices.tolist()[:TOP], best.values.tolist()[:TOP], strict=True)
    return [{"index": index, "score": round(score, 6)} for index, score in pairs]


if __name__ == "__main__":
    build_models(Path(sys.argv[1]))
    sys.stdout.write(f"five models and expectations.json are in {sys.argv[1]}\n")

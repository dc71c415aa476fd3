from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from runtime.architectures import Ranker, Sample, TensorSpec
from runtime.dry_run import dry_run
from runtime.generation_holder import Generation
from weightshift.errors import (
    CandidateError,
    DryRunFailed,
    OutOfMemory,
    Superseded,
    WeightshiftError,
)

MakeGeneration = Callable[..., Generation]


class Sampled(Ranker):
    """A ranker with one thing wrong at a time."""

    def __init__(self, **wrong: Any) -> None:
        for name, value in wrong.items():
            setattr(self, name, value)


def refuse(*_: object) -> None:
    raise DryRunFailed("a label is missing.")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"forward": lambda model, batch: model(batch).unsqueeze(1)}, "scores is"),
        ({"forward": lambda model, batch: model(batch).double()}, "float64"),
        ({"forward": lambda model, batch: model(batch) * float("nan")}, "not finite"),
        ({"forward": lambda model, batch: model(batch)[:0]}, "RuntimeError"),
        (
            {
                "outputs": (TensorSpec("scores", (), torch.bfloat16),),
                "forward": lambda model, batch: model(batch).bfloat16(),
            },
            "return float32",
        ),
        ({"inputs": (TensorSpec("rows", (88,), torch.bfloat16),)}, "take float32"),
        ({"batch_sizes": (2, 16)}, "lacks 1"),
        ({"inputs": (TensorSpec("rows", (87,), torch.float32),)}, "rows is"),
        ({"validate": refuse}, "label"),
        ({"postprocess": lambda *_: {"items": [{"index": object()}]}}, "written as JSON"),
        ({"samples": lambda resources: (Sample(body={}),)}, "context is missing"),
    ],
)
def test_a_dry_run_checks_shape_type_values_and_invariants(
    make_generation: MakeGeneration, wrong: dict[str, Any], message: str
) -> None:
    loaded = replace(make_generation().loaded, architecture=Sampled(**wrong))
    with pytest.raises(DryRunFailed, match=message):
        dry_run(loaded)


def test_a_request_that_finds_no_memory_is_told_apart(make_generation: MakeGeneration) -> None:
    hungry = Sampled(forward=lambda model, batch: torch.empty(1 << 50, dtype=torch.uint8))
    with pytest.raises(OutOfMemory, match="no memory"):
        dry_run(replace(make_generation().loaded, architecture=hungry))


def test_a_newer_target_ends_a_dry_run_as_what_it_is(make_generation: MakeGeneration) -> None:
    def superseded() -> None:
        raise Superseded

    with pytest.raises(Superseded):
        dry_run(make_generation().loaded, checkpoint=superseded)


@pytest.mark.parametrize(("offset", "accepted"), [(0.0, True), (1e-5, True), (0.1, False)])
def test_golden_outputs_are_compared_within_the_tolerance(
    make_generation: MakeGeneration, offset: float, accepted: bool
) -> None:
    loaded = make_generation().loaded
    (sample, _) = Ranker().samples(loaded.resources)
    rows = Ranker().preprocess(sample.body, loaded.resources)
    golden = Ranker().forward(loaded.module, rows) + offset
    architecture = Sampled(samples=lambda resources: (replace(sample, golden=golden),))
    outcome: WeightshiftError | None = None
    try:
        dry_run(replace(loaded, architecture=architecture))
    except CandidateError as error:
        outcome = error
    assert (outcome is None) == accepted

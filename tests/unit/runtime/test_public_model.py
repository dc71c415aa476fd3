"""A model that others trained and published, through a plugged-in architecture, against their own code."""

import io
import math
import warnings
from typing import Any

import pytest
import silero_vad
import torch
from safetensors.torch import save
from torch import Tensor

from tests.unit.runtime.silero_vad_model import WINDOW, from_published
from weightshift.contracts.manifest import WeightFormat

ARCHITECTURES = "tests.unit.runtime.silero_vad_model:SileroVad"
TIMES = torch.arange(WINDOW) / 16_000


@pytest.fixture(scope="module")
def library() -> Any:
    with warnings.catch_warnings():
        # The package still loads its model the old way.
        warnings.simplefilter("ignore", DeprecationWarning)
        return silero_vad.load_silero_vad()


def tone(*frequencies: float) -> Tensor:
    return sum((torch.sin(2 * math.pi * hertz * TIMES) for hertz in frequencies), torch.zeros(WINDOW)) / 4


def windows() -> list[Tensor]:
    torch.manual_seed(1)
    noise = [torch.randn(WINDOW).clamp(-1, 1) * loudness for loudness in (0.01, 0.3, 1)]
    return [torch.zeros(WINDOW), tone(150, 450, 900), tone(220), *noise]


def stored(weights: dict[str, Tensor], runtime: WeightFormat) -> bytes:
    if runtime is WeightFormat.SAFETENSORS:
        return save(weights)
    file = io.BytesIO()
    torch.save(weights, file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("runtime", "path"),
    [(WeightFormat.SAFETENSORS, "voice.safetensors"), (WeightFormat.STATE_DICT, "voice.pt")],
)
async def test_it_answers_as_its_own_library_does(
    world: Any, artifacts: Any, library: Any, runtime: WeightFormat, path: str
) -> None:
    manifest = artifacts.push(
        "voice",
        weights=stored(from_published(library.state_dict()), runtime),
        path=path,
        runtime=runtime,
        architecture="silero-vad",
        feature_schema="window-16k-v1",
        files={"config.json": None, "normalisation.json": None},
    )
    await world.publish(manifest)
    async with world.running(architectures=ARCHITECTURES) as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        for window in windows():
            library.reset_states()
            with torch.inference_mode():
                expected = float(library(window.unsqueeze(0), 16_000))
            answer = await client.post("/predict", json={"samples": window.tolist()})
            assert answer.status_code == 200
            assert answer.json()["speech"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


async def test_weights_of_another_training_do_not_pass_its_golden_answers(
    world: Any, artifacts: Any, library: Any
) -> None:
    weights = from_published(library.state_dict())
    weights["conv1.weight"] *= 1.5
    manifest = artifacts.push(
        "voice",
        weights=weights,
        architecture="silero-vad",
        feature_schema="window-16k-v1",
        files={"config.json": None, "normalisation.json": None},
    )
    await world.publish(manifest)
    async with world.running(architectures=ARCHITECTURES):

        async def is_refused() -> bool:
            report = await world.report()
            error = report.candidate.error if report and report.candidate else None
            return error is not None and error.type == "DryRunFailed"

        await world.until(is_refused)

"""Architectures that wait for the test, installed beside the runtime as a team's own would be."""

import os
import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from runtime.architectures import Ranker, Sample
from runtime.decoder import Decoder
from runtime.streaming import Step

GATE = Path(os.environ["TEST_GATE"])


def wait_for(name: str) -> None:
    """Say that this point is reached, and wait there until the test lets go."""
    (GATE / f"{name}.reached").touch()
    while not (GATE / name).exists():
        time.sleep(0.005)


class SlowRanker(Ranker):
    """Its dry-run is inside the model's code until the test says so."""

    name = "slow-ranker"

    def samples(self, resources: Any) -> tuple[Sample, ...]:
        wait_for("dry-run")
        return super().samples(resources)


class BlockingRanker(Ranker):
    """Reading a request blocks the event loop, as bad code does; a context of sevens asks for it."""

    name = "blocking-ranker"

    def preprocess(self, body: Any, resources: Any) -> Tensor:
        if isinstance(body, dict) and body.get("context") == [7] * 8:
            wait_for("request")
        return super().preprocess(body, resources)


class HangingRanker(Ranker):
    """Answers nothing while the test says so."""

    def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
        while (GATE / "hang").exists():
            time.sleep(0.005)
        return super().forward(model, batch)


class SlowDecoder(Decoder):
    """Takes its time for each token."""

    name = "slow-decoder"

    def step(self, model: nn.Module, state: Any) -> Step:
        time.sleep(0.02)
        return super().step(model, state)

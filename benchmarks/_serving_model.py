"""The ranker as every server in `serving.py` runs it: one artifact's directory, the same code for all."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from runtime.architectures import Ranker

DIRECTORY = "BENCHMARK_MODEL"
PORT = "BENCHMARK_PORT"
MAX_BATCH = 16


class ServedRanker:
    """Reads request bodies and answers several at once."""

    def __init__(self, directory: Path) -> None:
        torch.set_num_threads(1)
        self.architecture = Ranker()
        self.resources = self.architecture.resources(
            {name: (directory / name).read_bytes() for name in ("config.json", "normalisation.json")}
        )
        self.module = self.architecture.build(self.resources)
        self.module.load_state_dict(load_file(directory / "model.safetensors"))
        self.module.eval()

    def scores(self, rows: Tensor) -> Tensor:
        """Score normalised rows."""
        with torch.inference_mode():
            return self.architecture.forward(self.module, rows)

    def answer(self, bodies: Sequence[Any]) -> list[Any]:
        """Answer JSON bodies in one forward pass."""
        rows = [self.architecture.preprocess(body, self.resources) for body in bodies]
        outputs = torch.split(self.scores(torch.cat(rows)), [len(part) for part in rows])
        return [
            self.architecture.postprocess(out, body, self.resources)
            for out, body in zip(outputs, bodies, strict=True)
        ]


def model_directory() -> Path:
    """Return the artifact's directory, which the benchmark names."""
    return Path(os.environ[DIRECTORY])


def port() -> int:
    """Return the port to listen on, which the benchmark names."""
    return int(os.environ[PORT])

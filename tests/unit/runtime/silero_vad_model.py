"""The public voice activity detector of the package `silero-vad`, as an architecture a team would plug in.

Its network is written anew; the published weights are used as they are, under the names of this one.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from runtime.architectures import Sample, TensorSpec
from weightshift.contracts.manifest import Precision
from weightshift.errors import DryRunFailed, IncompatibleModel, InvalidInput

WINDOW = 512
CONTEXT = 64
_FRAME, _HOP, _BINS, _HIDDEN = 256, 128, 129, 128
_PADDING = 64
_PUBLISHED = {
    "stft_conv.weight": "stft.forward_basis_buffer",
    **{
        f"conv{layer + 1}.{kind}": f"encoder.{layer}.reparam_conv.{kind}"
        for layer in range(4)
        for kind in ("weight", "bias")
    },
    **{
        f"lstm_cell.{name}": f"decoder.rnn.{name}"
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    },
    "final_conv.weight": "decoder.decoder.2.weight",
    "final_conv.bias": "decoder.decoder.2.bias",
}


def from_published(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights for 16 kHz of the package's own model, under our names."""
    return {name: state[f"_model.{published}"].clone() for name, published in _PUBLISHED.items()}


class VoiceNetwork(nn.Module):
    """One window of 32 ms at 16 kHz, with what came before it: `[rows, 576] -> [rows, 1]`."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 2 * _BINS, _FRAME, stride=_HOP, bias=False)
        self.conv1 = nn.Conv1d(_BINS, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, _HIDDEN, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(_HIDDEN, _HIDDEN)
        self.final_conv = nn.Conv1d(_HIDDEN, 1, 1)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the probability that somebody speaks in each window, heard for the first time."""
        padded = nn.functional.pad(rows, (0, _PADDING), mode="reflect").unsqueeze(1)
        real, imaginary = self.stft_conv(padded).split(_BINS, dim=1)
        features = torch.hypot(real, imaginary)
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            features = torch.relu(layer(features))
        hidden, _ = self.lstm_cell(features.squeeze(-1))
        return torch.sigmoid(self.final_conv(torch.relu(hidden).unsqueeze(-1))).squeeze(-1)


class SileroVad:
    """Tells speech from everything else in one window of sound."""

    name = "silero-vad"
    feature_schema = "window-16k-v1"
    precision = Precision.FP32
    inputs: tuple[TensorSpec, ...] = (TensorSpec("windows", (CONTEXT + WINDOW,), torch.float32),)
    outputs: tuple[TensorSpec, ...] = (TensorSpec("speech", (1,), torch.float32),)
    batch_sizes: tuple[int, ...] = (1, 8)
    tied: Mapping[str, str] = {}
    score_edges: tuple[float, ...] = tuple(step / 50 for step in range(1, 50))

    def resources(self, files: Mapping[str, bytes]) -> None:
        if files:
            raise IncompatibleModel("An artifact of silero-vad holds its weights alone.")

    def build(self, resources: None) -> nn.Module:
        return VoiceNetwork()

    def materialise(self, model: nn.Module) -> None:
        pass

    def preprocess(self, body: object, resources: None) -> Tensor:
        samples = body.get("samples") if isinstance(body, dict) else None
        if not isinstance(samples, list) or len(samples) != WINDOW:
            raise InvalidInput(f"samples must be a list of {WINDOW} numbers.")
        if not all(type(sample) in (int, float) and abs(sample) <= 1 for sample in samples):
            raise InvalidInput("Every sample must be a number from -1 to 1.")
        silence = torch.zeros(CONTEXT)
        return self.normalise(torch.cat([silence, torch.tensor(samples)]).unsqueeze(0), resources)

    def normalise(self, rows: Tensor, resources: None) -> Tensor:
        if not bool((rows.abs() <= 1).all()):
            raise InvalidInput("windows must hold numbers from -1 to 1.")
        return rows

    def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
        return cast(Tensor, model(batch))

    def postprocess(self, out: Tensor, body: object, resources: None) -> object:
        return {"speech": float(out[0, 0])}

    def validate(self, out: Tensor, answer: Any) -> None:
        if not 0 <= answer["speech"] <= 1:
            raise DryRunFailed("speech is not a probability.")

    def score(self, out: Tensor) -> float:
        return float(out[0, 0])

    def samples(self, resources: None) -> tuple[Sample, ...]:
        click = [0.0] * WINDOW
        click[WINDOW // 2] = 1.0
        # What the published model says of silence and of a click.
        return (
            Sample({"samples": [0.0] * WINDOW}, golden=torch.tensor([[0.00167]]), absolute_tolerance=1e-5),
            Sample({"samples": click}, golden=torch.tensor([[0.04407]]), absolute_tolerance=1e-5),
        )

"""`decoder`: a small language model over bytes, the example of an architecture that streams."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from runtime.architectures import Sample, TensorSpec
from runtime.decoder_network import CONTEXT, VOCABULARY, DecoderNetwork, KeyValueCache
from runtime.streaming import Step
from weightshift.contracts.base import describe_problems
from weightshift.contracts.manifest import Precision
from weightshift.errors import DryRunFailed, IncompatibleModel, InvalidInput

_NO_TOKEN = -1
_LIKELIEST = 5


class DecoderConfig(BaseModel):
    """`config.json`: the size of the network."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    layers: int = Field(ge=1, le=48)
    heads: int = Field(ge=1, le=64)
    width: int = Field(ge=8, le=8192)


class Prompt(BaseModel):
    """The body of a request. `samples` answers are generated side by side, from seeds one apart."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    prompt: str = Field(min_length=1, max_length=CONTEXT)
    max_tokens: int = Field(default=16, ge=1, le=CONTEXT)
    samples: int = Field(default=1, ge=1, le=8)
    temperature: float = Field(default=0.0, ge=0, le=10)
    seed: int = Field(default=0, ge=0, lt=1 << 32)

    @property
    def tokens(self) -> list[int]:
        """The prompt's bytes."""
        return list(self.prompt.encode())


@dataclass(eq=False)
class SampleState:
    """One answer in the making: what it has said, what it has cached, and its own randomness."""

    cache: KeyValueCache
    pending: list[int]
    randomness: torch.Generator
    said: list[int] = field(default_factory=list)


@dataclass(eq=False)
class DecoderState:
    """One session."""

    prompt: Prompt
    samples: list[SampleState]


class Decoder:
    """Continues text, byte by byte; `/predict` gives the likeliest next bytes."""

    name = "decoder"
    feature_schema = "bytes-v1"
    precision = Precision.FP32
    inputs: tuple[TensorSpec, ...] = (TensorSpec("tokens", (CONTEXT,), torch.int64),)
    outputs: tuple[TensorSpec, ...] = (TensorSpec("logits", (VOCABULARY,), torch.float32),)
    batch_sizes: tuple[int, ...] = (1, 16)
    tied: Mapping[str, str] = {"head.weight": "embedding.weight"}

    def resources(self, files: Mapping[str, bytes]) -> DecoderConfig:
        """Read `config.json`. Raises `IncompatibleModel`."""
        if set(files) != {"config.json"}:
            raise IncompatibleModel("A decoder artifact holds config.json and its weights, nothing else.")
        try:
            config = DecoderConfig.model_validate_json(files["config.json"])
        except ValidationError as error:
            raise IncompatibleModel(f"config.json does not fit: {describe_problems(error)}.") from None
        if config.width % config.heads:
            raise IncompatibleModel("width in config.json must be a multiple of heads.")
        return config

    def build(self, resources: DecoderConfig) -> nn.Module:
        """Build the network of the size in `config.json`."""
        return DecoderNetwork(layers=resources.layers, heads=resources.heads, width=resources.width)

    def materialise(self, model: nn.Module) -> None:
        """Nothing: the weights hold everything."""

    def preprocess(self, body: object, resources: DecoderConfig) -> Tensor:
        """Return `[1, context]` bytes, filled up on the right. Raises `InvalidInput`."""
        rows = torch.full((1, CONTEXT), _NO_TOKEN)
        tokens = self.read_prompt(body, resources).tokens
        rows[0, : len(tokens)] = torch.tensor(tokens)
        return self.normalise(rows, resources)

    def normalise(self, rows: Tensor, resources: DecoderConfig) -> Tensor:
        """Check that rows hold bytes and are filled up on the right only. Raises `InvalidInput`."""
        is_token = rows != _NO_TOKEN
        in_range = (rows >= _NO_TOKEN) & (rows < VOCABULARY)
        is_prefix = is_token[:, :-1] | ~is_token[:, 1:]
        if not bool(in_range.all() & is_prefix.all() & is_token[:, 0].all()):
            raise InvalidInput(f"tokens must be 1 to {CONTEXT} bytes, then {_NO_TOKEN} up to the end.")
        return rows

    def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the logits of the byte after each row's last: `[rows, 256]`."""
        lasts = (batch != _NO_TOKEN).sum(dim=1) - 1
        logits = cast(Tensor, model(batch.clamp(min=0)))
        return logits[torch.arange(len(batch), device=batch.device), lasts]

    def postprocess(self, out: Tensor, body: object, resources: DecoderConfig) -> object:
        """Return the likeliest next bytes."""
        best = torch.softmax(out[0], dim=0).topk(_LIKELIEST)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return {"next": [{"token": token, "probability": round(value, 6)} for token, value in pairs]}

    def validate(self, out: Tensor, answer: object) -> None:
        """Check that every logit is finite. Raises `DryRunFailed`."""
        if not bool(torch.isfinite(out).all()):
            raise DryRunFailed("logits are not finite.")

    def samples(self, resources: DecoderConfig) -> tuple[Sample, ...]:
        """Return a short and a full prompt."""
        return Sample({"prompt": "a"}), Sample({"prompt": "b" * CONTEXT})

    def read_prompt(self, body: object, resources: DecoderConfig) -> Prompt:
        """Read a request. Raises `InvalidInput`."""
        try:
            prompt = Prompt.model_validate(body)
        except ValidationError as error:
            raise InvalidInput(f"The request does not fit: {describe_problems(error)}.") from None
        if len(prompt.tokens) > CONTEXT:
            raise InvalidInput(f"prompt has {len(prompt.tokens)} bytes; {CONTEXT} are the most.")
        return prompt

    def open(self, model: nn.Module, prompt: Prompt) -> DecoderState:
        """Give every sample its own cache and its own randomness."""
        network = cast(DecoderNetwork, model)
        samples = [
            SampleState(
                cache=KeyValueCache.empty(network),
                pending=prompt.tokens,
                randomness=torch.Generator().manual_seed(prompt.seed + number),
            )
            for number in range(prompt.samples)
        ]
        return DecoderState(prompt, samples)

    def step(self, model: nn.Module, state: DecoderState) -> Step:
        """Say one more byte in every sample that has room for it."""
        events = []
        for number, sample in enumerate(state.samples):
            if not self._is_over(state, sample):
                token = self._advance(cast(DecoderNetwork, model), sample, state.prompt.temperature)
                events.append({"sample": number, "token": token})
        return Step(tuple(events), all(self._is_over(state, sample) for sample in state.samples))

    def close(self, state: DecoderState) -> None:
        """Let go of every cache."""
        state.samples.clear()

    def _is_over(self, state: DecoderState, sample: SampleState) -> bool:
        is_full = sample.cache.length + len(sample.pending) > CONTEXT
        return len(sample.said) >= state.prompt.max_tokens or is_full

    def _advance(self, network: DecoderNetwork, sample: SampleState, temperature: float) -> int:
        # Each sample alone: another batch size would change the last bits, and so the answer.
        device = network.embedding.weight.device
        logits = network(torch.tensor([sample.pending], device=device), sample.cache)[0, -1].cpu()
        if temperature == 0:
            token = int(logits.argmax())
        else:
            odds = torch.softmax(logits / temperature, dim=0)
            token = int(torch.multinomial(odds, 1, generator=sample.randomness))
        sample.pending = [token]
        sample.said.append(token)
        return token

"""The plug-in contract between a served model and the runtime, and the `ranker` that fulfils it.

Architectures are service code, found by name (`runtime/installed_architectures.py`). Nothing an artifact
holds is ever imported or executed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from runtime.scoring import signed_edges
from weightshift.contracts.manifest import Precision
from weightshift.errors import DryRunFailed, IncompatibleModel, InvalidInput

_MOST_DEVIATIONS = 1e6
_Document = TypeVar("_Document", bound=BaseModel)


@dataclass(frozen=True)
class TensorSpec:
    """One input or output: its name, its shape after the row dimension, and its type."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Sample:
    """A representative request; `golden` is the output it must give, within the tolerances."""

    body: object
    golden: Tensor | None = None
    relative_tolerance: float = 1e-4
    absolute_tolerance: float = 1e-4


class Architecture(Protocol):
    """What the runtime calls to serve one kind of model. Implementations hold no state.

    `resources` is whatever the implementation derives from an artifact's small files; it belongs to
    a generation and is handed back to every call.
    """

    name: str
    feature_schema: str
    precision: Precision
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch_sizes: tuple[int, ...]
    tied: Mapping[str, str]

    def resources(self, files: Mapping[str, bytes]) -> Any:
        """Read every file beside the weights. Raises `IncompatibleModel`, also for an unknown file."""

    def build(self, resources: Any) -> nn.Module:
        """Build the module; called under the meta device, so it allocates nothing."""

    def materialise(self, model: nn.Module) -> None:
        """Fill what the weights do not hold (non-persistent buffers) once they are in place."""

    def preprocess(self, body: object, resources: Any) -> Tensor:
        """Turn a parsed request body into input rows. Raises `InvalidInput`, naming the field."""

    def normalise(self, rows: Tensor, resources: Any) -> Tensor:
        """Turn raw input rows into what `forward` takes. Raises `InvalidInput`, naming the tensor."""

    def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Run the rows of several requests; the output has one entry per input row."""

    def postprocess(self, out: Tensor, body: object, resources: Any) -> object:
        """Turn one request's output rows into its JSON answer."""

    def validate(self, out: Tensor, answer: object) -> None:
        """Check the invariants of one request's output and answer. Raises `DryRunFailed`."""

    def samples(self, resources: Any) -> tuple[Sample, ...]:
        """Return the requests every candidate must answer before it serves."""


class RankerConfig(BaseModel):
    """`config.json`: the hidden layers' widths."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    hidden: list[int] = Field(min_length=1, max_length=4)


class Normalisation(BaseModel):
    """`normalisation.json`: `[88]` means and deviations of the features."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    mean: list[float] = Field(min_length=88, max_length=88)
    std: list[float] = Field(min_length=88, max_length=88)


@dataclass(frozen=True)
class RankerResources:
    """Hidden widths, and `[88]` float32 mean and deviation."""

    hidden: tuple[int, ...]
    mean: Tensor
    std: Tensor


class RankerNetwork(nn.Module):
    """Linear and ReLU per hidden width, then one linear head: `[rows, 88] -> [rows]`."""

    def __init__(self, hidden: tuple[int, ...]) -> None:
        super().__init__()
        widths = (Ranker.features, *hidden)
        self.layers = nn.ModuleList(nn.Linear(width, following) for width, following in pairwise(widths))
        self.head = nn.Linear(widths[-1], 1)

    def forward(self, rows: Tensor) -> Tensor:
        """Score normalised rows."""
        for layer in self.layers:
            rows = torch.relu(layer(rows))
        return cast(Tensor, self.head(rows)).squeeze(-1)


class Ranker:
    """Ranks up to 64 candidates of 80 features under a context of 8 features."""

    name = "ranker"
    feature_schema = "ranker-v1"
    precision = Precision.FP32
    candidate_features = 80
    context_features = 8
    features = candidate_features + context_features
    max_candidates = 64
    max_width = 8192
    inputs: tuple[TensorSpec, ...] = (TensorSpec("rows", (features,), torch.float32),)
    outputs: tuple[TensorSpec, ...] = (TensorSpec("scores", (), torch.float32),)
    batch_sizes: tuple[int, ...] = (1, 16)
    tied: Mapping[str, str] = {}
    score_edges: tuple[float, ...] = signed_edges(0.01, 100, per_decade=12)

    def resources(self, files: Mapping[str, bytes]) -> RankerResources:
        """Read `config.json` and `normalisation.json`. Raises `IncompatibleModel`."""
        expected = {"config.json", "normalisation.json"}
        if set(files) != expected:
            odd = sorted(set(files) ^ expected)[:3]
            raise IncompatibleModel(f"A ranker artifact misses or must not hold {odd}; push it without.")
        config = _read_document(RankerConfig, "config.json", files)
        if not all(1 <= width <= self.max_width for width in config.hidden):
            raise IncompatibleModel(f"hidden in config.json holds a width outside 1 to {self.max_width}.")
        normalisation = _read_document(Normalisation, "normalisation.json", files)
        mean = torch.tensor(normalisation.mean, dtype=torch.float32)
        std = torch.tensor(normalisation.std, dtype=torch.float32)
        usable = torch.isfinite(mean) & torch.isfinite(std) & (std > 0) & torch.isfinite(1 / std)
        if not bool(usable.all()):
            raise IncompatibleModel("normalisation.json needs finite means and deviations above 0.")
        return RankerResources(hidden=tuple(config.hidden), mean=mean, std=std)

    def build(self, resources: RankerResources) -> nn.Module:
        """Build the network for the widths in `config.json`."""
        return RankerNetwork(resources.hidden)

    def materialise(self, model: nn.Module) -> None:
        """Nothing: the weights hold everything."""

    def preprocess(self, body: object, resources: RankerResources) -> Tensor:
        """Return `[candidates, 88]` normalised rows. Raises `InvalidInput`."""
        request = _checked_fields(body)
        _checked_top(request)
        candidates = request["candidates"]
        if not isinstance(candidates, list) or not 1 <= len(candidates) <= self.max_candidates:
            raise InvalidInput(f"candidates must be a list of 1 to {self.max_candidates} rows.")
        _checked_numbers("context", request["context"], self.context_features)
        for position, candidate in enumerate(candidates):
            _checked_numbers(f"candidates[{position}]", candidate, self.candidate_features)
        count = len(candidates)
        rows = np.empty((count, self.features), dtype=np.float32)
        flat = chain.from_iterable(candidates)
        rows[:, : self.candidate_features] = _as_rows("candidates", flat, count)
        rows[:, self.candidate_features :] = _as_rows("context", request["context"], 1)
        return self.normalise(torch.from_numpy(rows), resources)

    def normalise(self, rows: Tensor, resources: RankerResources) -> Tensor:
        """Subtract the mean and divide by the deviation of each feature. Raises `InvalidInput`."""
        if len(rows) > self.max_candidates:
            raise InvalidInput(f"rows must hold at most {self.max_candidates} candidates.")
        normalised = (rows - resources.mean) / resources.std
        _check_range(normalised)
        return normalised

    def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Score `[rows, 88]` as `[rows]`."""
        return cast(Tensor, model(batch))

    def postprocess(self, out: Tensor, body: object, resources: RankerResources) -> object:
        """Return the `top` candidates by falling score, equal scores by index."""
        top = cast(dict[str, int], body).get("top", 3)
        scores = out.tolist()
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:top]
        return {"items": [{"index": index, "score": round(scores[index], 6)} for index in order]}

    def validate(self, out: Tensor, answer: object) -> None:
        """Check that scores are finite and every item names another candidate."""
        if out.ndim != 1 or not bool(torch.isfinite(out).all()):
            raise DryRunFailed(f"scores have shape {list(out.shape)} or are not finite.")
        items = cast(dict[str, list[dict[str, Any]]], answer)["items"]
        if not items or len({item["index"] for item in items}) != len(items):
            raise DryRunFailed("items are empty or name a candidate twice.")

    def score(self, out: Tensor) -> float:
        """Return the best candidate's score."""
        return float(out.max())

    def samples(self, resources: RankerResources) -> tuple[Sample, ...]:
        """Return the mean candidate alone, and a full request spread over three deviations."""
        mean, std = resources.mean, resources.std
        spread = torch.linspace(-3.0, 3.0, self.max_candidates).unsqueeze(1)
        return (_sample(mean.unsqueeze(0), top=1), _sample(mean + spread * std, top=self.max_candidates))


def _read_document(model: type[_Document], name: str, files: Mapping[str, bytes]) -> _Document:
    try:
        return model.model_validate_json(files[name])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise IncompatibleModel(f"{name} does not fit the ranker at {field!r}: {first['msg']}.") from None


def _checked_fields(body: object) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise InvalidInput("The body must be a JSON object with context, candidates and top.")
    if unknown := sorted(set(body) - {"context", "candidates", "top"}):
        raise InvalidInput(f"The body holds an unknown field {unknown[0][:100]!r}; leave it out.")
    for field in ("context", "candidates"):
        if field not in body:
            raise InvalidInput(f"{field} is missing.")
    return body


def _checked_top(request: Mapping[str, Any]) -> None:
    top = request.get("top", 3)
    if type(top) is not int or not 1 <= top <= Ranker.max_candidates:
        raise InvalidInput(f"top must be a whole number from 1 to {Ranker.max_candidates}.")


def _checked_numbers(field: str, values: object, length: int) -> None:
    # bool is an int to isinstance, and numpy would read "1.5" as a number: exact types only.
    if not isinstance(values, list) or len(values) != length or not set(map(type, values)) <= {float, int}:
        raise InvalidInput(f"{field} must be a list of {length} numbers.")


def _as_rows(field: str, values: Iterable[float], rows: int) -> np.ndarray[Any, Any]:
    try:
        # What overflows becomes infinite and is refused by its range.
        with np.errstate(over="ignore"):
            return np.fromiter(values, dtype=np.float32).reshape(rows, -1)
    except OverflowError:
        raise InvalidInput(f"{field} holds a number that is too large.") from None


def _check_range(rows: Tensor) -> None:
    """Refuse what could make the network overflow, so that a bad input never looks like a bad model."""
    if bool(rows.abs().max() <= _MOST_DEVIATIONS):
        return
    context = rows[:, Ranker.candidate_features :]
    field = "candidates" if bool(context.abs().max() <= _MOST_DEVIATIONS) else "context"
    raise InvalidInput(
        f"{field} holds a number that is not finite or over {_MOST_DEVIATIONS:g} deviations off the mean."
    )


def _sample(rows: Tensor, *, top: int) -> Sample:
    """Turn raw `[candidates, 88]` rows into a request body."""
    values = rows.tolist()
    body = {
        "context": values[0][Ranker.candidate_features :],
        "candidates": [row[: Ranker.candidate_features] for row in values],
        "top": top,
    }
    return Sample(body=body)

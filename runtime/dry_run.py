"""A candidate's representative requests, before it may answer anybody else's."""

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from math import isfinite

import orjson
import torch
from torch import Tensor

from runtime.architectures import Architecture, Sample, TensorSpec
from runtime.compiled_modules import check_not_compiled
from runtime.device_health import is_out_of_memory
from runtime.execution import forward
from runtime.generation_holder import LoadedModel
from runtime.scoring import ScoringArchitecture
from runtime.streaming import StreamingArchitecture
from runtime.wire_types import NUMPY_TYPES
from weightshift.errors import DryRunFailed, OutOfMemory, Superseded, SwapTooSlow, WeightshiftError


def dry_run(loaded: LoadedModel, *, checkpoint: Callable[[], None] = lambda: None) -> None:
    """Answer the architecture's samples at its `batch_sizes`; none larger than those is ever served.

    `checkpoint` is called before every step and may raise to stop. Raises `DryRunFailed` for a wrong shape,
    type, value, invariant or golden output, `IncompatibleModel` for a model that compiled itself, and
    `OutOfMemory`.
    """
    try:
        _check_declared(loaded.architecture)
        samples = loaded.architecture.samples(loaded.resources)
        for batch_size in loaded.architecture.batch_sizes:
            _run_batches(loaded, samples, batch_size, checkpoint)
        checkpoint()
        if isinstance(loaded.architecture, StreamingArchitecture):
            _run_sessions(loaded, loaded.architecture, samples, checkpoint)
        checkpoint()
    except (DryRunFailed, Superseded, SwapTooSlow):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory("A representative request found no memory; give the instance more.") from error
        detail = str(error) if isinstance(error, WeightshiftError) else type(error).__name__
        raise DryRunFailed(f"A representative request failed: {detail}") from error
    check_not_compiled(loaded.module)


def _check_declared(architecture: Architecture) -> None:
    """Refuse an architecture that leaves single requests untried, or whose tensors cannot be sent."""
    if 1 not in architecture.batch_sizes:
        raise DryRunFailed("batch_sizes lacks 1, for a request that is served alone; add it.")
    for specs, advice in (
        (architecture.inputs, "take float32 and convert in forward"),
        (architecture.outputs, "return float32"),
    ):
        for spec in specs:
            if spec.dtype not in NUMPY_TYPES:
                raise DryRunFailed(f"{spec.name} is {spec.dtype}, which cannot be sent over HTTP; {advice}.")


def _run_sessions(
    loaded: LoadedModel,
    architecture: StreamingArchitecture,
    samples: Sequence[Sample],
    checkpoint: Callable[[], None],
) -> None:
    """Stream every sample to its end."""
    for sample in samples:
        checkpoint()
        prompt = architecture.read_prompt(sample.body, loaded.resources)
        with torch.inference_mode():
            state = architecture.open(loaded.module, prompt)
            is_last = False
            while not is_last:
                step = architecture.step(loaded.module, state)
                _check_json(step.events)
                is_last = step.is_last
                checkpoint()
        architecture.close(state)


def _run_batches(
    loaded: LoadedModel, samples: Sequence[Sample], batch_size: int, checkpoint: Callable[[], None]
) -> None:
    """At batch 1 every sample has its turn alone; otherwise they are repeated to fill the batch."""
    prepared = []
    for sample in samples:
        checkpoint()
        rows = loaded.architecture.preprocess(sample.body, loaded.resources)
        _check_spec(rows, len(rows), loaded.architecture.inputs[0])
        prepared.append((sample, rows))
    if batch_size == 1:
        for one in prepared:
            _run_batch(loaded, [one], checkpoint)
    else:
        _run_batch(loaded, list(islice(cycle(prepared), batch_size)), checkpoint)


def _run_batch(
    loaded: LoadedModel, batch: Sequence[tuple[Sample, Tensor]], checkpoint: Callable[[], None]
) -> None:
    checkpoint()
    outputs = forward(loaded, [rows for _, rows in batch])
    for (sample, rows), out in zip(batch, outputs, strict=True):
        checkpoint()
        _check_spec(out, len(rows), loaded.architecture.outputs[0])
        _check_output(loaded, sample, out)


def _check_spec(tensor: Tensor, rows: int, spec: TensorSpec) -> None:
    if tuple(tensor.shape) != (rows, *spec.shape) or tensor.dtype != spec.dtype:
        raise DryRunFailed(
            f"{spec.name} is {tensor.dtype} {list(tensor.shape)}; {spec.dtype} {[rows, *spec.shape]} was due."
        )


def _check_json(answer: object) -> None:
    try:
        orjson.dumps(answer)
    except TypeError as error:
        raise DryRunFailed(f"An answer cannot be written as JSON: {error}.") from None


def _check_output(loaded: LoadedModel, sample: Sample, out: Tensor) -> None:
    if not bool(torch.isfinite(out).all()):
        raise DryRunFailed("An output is not finite.")
    answer = loaded.architecture.postprocess(out, sample.body, loaded.resources)
    loaded.architecture.validate(out, answer)
    _check_json(answer)
    if isinstance(loaded.architecture, ScoringArchitecture) and not isfinite(loaded.architecture.score(out)):
        raise DryRunFailed("The score of an answer is not finite.")
    if sample.golden is not None and not torch.allclose(
        out, sample.golden, rtol=sample.relative_tolerance, atol=sample.absolute_tolerance
    ):
        raise DryRunFailed("An output differs from its golden one by more than the tolerance.")

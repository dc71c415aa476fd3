"""Putting a candidate's weights over those that serve, in the same storage, and taking them back.

For a device that has no room for both. The addresses stay; what was computed under the old weights does not.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from runtime.assembly import assemble, complete, place
from runtime.device_health import DeviceHealth
from runtime.generation_holder import LoadedModel
from runtime.host_memory import finish_copies, host_copy
from runtime.pause import PausePhase
from runtime.tensor_fit import TensorSpecs, tensor_specs

_logger = logging.getLogger(__name__)


def is_exchangeable(serving: LoadedModel, tensors: TensorSpecs) -> bool:
    """Whether these tensors fit exactly over those of the model that serves."""
    return not serving.is_staged and tensor_specs(serving.tensors) == tensors


class Exchange:
    """One candidate, staged in host memory, and the model whose storage it takes over; blocking.

    Creating it copies the serving weights to host memory, beside live requests. Between `run` and its
    return no request may use either model.
    """

    def __init__(self, *, serving: LoadedModel, candidate: LoadedModel, health: DeviceHealth) -> None:
        self._serving = serving
        self._candidate = candidate
        self._health = health
        self._storage = serving.tensors
        self._previous = host_copy(serving)
        self._staged = candidate.tensors
        # Put together beside live requests, so that none of it has to be done in the pause.
        self._new = place(candidate.architecture, candidate.resources, self._storage)
        self._old, self._staged_new = serving.module, candidate.module
        self._staged_old = assemble(serving.architecture, serving.resources, self._previous)
        self.is_complete = False

    def run(
        self,
        check: Callable[[LoadedModel], None],
        *,
        timed: Callable[[PausePhase], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Copy, then let `check` try the candidate; whatever fails, the previous weights are back.

        Both happen in a `timed` block. Raises what `check` raises, and what a device raises.
        """
        try:
            with timed(PausePhase.COPYING):
                self._copy(self._staged)
            complete(self._candidate.architecture, self._new)
            _set(self._candidate, self._storage, self._new, is_staged=False)
            _set(self._serving, self._previous, self._staged_old, is_staged=True)
            with timed(PausePhase.DRY_RUNNING):
                check(self._candidate)
            self.is_complete = True
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Put the previous weights back; where that fails nothing can serve any more."""
        self.is_complete = False
        try:
            self._copy(self._previous)
            _set(self._serving, self._storage, self._old, is_staged=False)
            _set(self._candidate, self._staged, self._staged_new, is_staged=True)
        except BaseException as error:
            self._health.lose(error)
            raise

    def _copy(self, source: Mapping[str, Tensor]) -> None:
        with torch.inference_mode():
            for name, tensor in self._storage.items():
                tensor.copy_(source[name], non_blocking=True)
        finish_copies(self._serving)


def _set(model: LoadedModel, tensors: Mapping[str, Tensor], module: nn.Module, *, is_staged: bool) -> None:
    model.tensors, model.module, model.is_staged = tensors, module, is_staged

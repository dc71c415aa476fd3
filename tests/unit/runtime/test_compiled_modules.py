"""What `torch.compile` keeps outlives a generation: a compiled model is refused, wherever it was compiled."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from runtime.architectures import Ranker, RankerNetwork, RankerResources, Sample
from runtime.assembly import assemble
from runtime.dry_run import dry_run
from runtime.generation_holder import Generation
from weightshift.errors import IncompatibleModel

# Of torch's own, as it imports its compiler.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MakeGeneration = Callable[..., Generation]


class CompiledInside(Ranker):
    """Its network is compiled in part."""

    def build(self, resources: RankerResources) -> RankerNetwork:
        network = RankerNetwork(resources.hidden)
        network.layers[0] = cast(nn.Module, torch.compile(network.layers[0]))
        return network


class CompiledAfterLoading(Ranker):
    """Its network is compiled once the weights are in place."""

    def materialise(self, model: nn.Module) -> None:
        model.compile()


class CompiledByARequest(Ranker):
    """Its network is compiled by the first request."""

    batch_sizes: tuple[int, ...] = (1,)

    def samples(self, resources: RankerResources) -> tuple[Sample, ...]:
        return super().samples(resources)[:1]

    def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
        out = cast(Tensor, model(batch))
        model.get_submodule("head").compile()
        return out


@pytest.mark.parametrize(
    ("architecture", "module"), [(CompiledInside(), "layers.0"), (CompiledAfterLoading(), "of the arch")]
)
def test_a_compiled_model_is_not_loaded(
    make_generation: MakeGeneration, artifacts: Any, architecture: Ranker, module: str
) -> None:
    resources = make_generation().loaded.resources
    with pytest.raises(IncompatibleModel, match=f"'{module}.*is compiled"):
        assemble(architecture, resources, artifacts.weights())


def test_a_model_that_compiles_itself_as_it_answers_is_refused(make_generation: MakeGeneration) -> None:
    loaded = make_generation().loaded
    dry_run(loaded)
    with pytest.raises(IncompatibleModel, match="'head' is compiled"):
        dry_run(replace(loaded, architecture=CompiledByARequest()))

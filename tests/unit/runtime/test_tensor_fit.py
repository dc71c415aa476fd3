"""What a refusal says of tensors that are not those of the architecture."""

import pytest
import torch
from torch import nn

from runtime.tensor_fit import check_tensors, tensor_specs
from weightshift.errors import IncompatibleModel


def layers(count: int, *, width: int = 2) -> nn.Module:
    return nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(count))


def test_everything_that_differs_is_named_at_once() -> None:
    found = {**tensor_specs(layers(3, width=4).state_dict()), "head.weight": (torch.int8, (1,))}
    with pytest.raises(IncompatibleModel) as refused:
        check_tensors(found, layers(5), {"4.weight": "0.weight"})
    assert str(refused.value) == (
        "The weights lack '3.weight'; they hold unknown 'head.weight'; they hold "
        "'0.weight' as torch.float32 [4, 4] instead of torch.float32 [2, 2], "
        "'1.weight' as torch.float32 [4, 4] instead of torch.float32 [2, 2], "
        "'2.weight' as torch.float32 [4, 4] instead of torch.float32 [2, 2]; "
        "push them under the architecture that they are of."
    )


def test_of_many_the_first_are_named_and_the_rest_is_counted() -> None:
    found = {"x" * 1000 + str(number): (torch.int8, (1,)) for number in range(1000)}
    with pytest.raises(IncompatibleModel, match=r"'7\.weight' and 2 more; .* and 992 more; push") as refused:
        check_tensors(found, layers(10), {})
    assert len(str(refused.value)) < 2000

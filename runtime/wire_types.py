"""The tensor types that requests and answers can hold."""

from collections.abc import Mapping

import torch

NUMPY_TYPES: Mapping[torch.dtype, tuple[str, str]] = {
    torch.float64: ("FP64", "<f8"),
    torch.float32: ("FP32", "<f4"),
    torch.float16: ("FP16", "<f2"),
    torch.int64: ("INT64", "<i8"),
    torch.int32: ("INT32", "<i4"),
    torch.int16: ("INT16", "<i2"),
    torch.int8: ("INT8", "<i1"),
    torch.uint8: ("UINT8", "<u1"),
    torch.bool: ("BOOL", "|b1"),
}
"""Each type's name in the Open Inference Protocol, and numpy's for it; numpy has no bfloat16."""

"""What a `pytorch-state-dict` file holds, read without torch and without executing anything.

The file is a zip archive whose `data.pkl` describes the tensors. Only the few instructions that a plain
state dict needs are interpreted; everything else a pickle could do is refused.
"""

import io
import math
import pickletools
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from weightshift.artifacts.safetensors_header import MAX_HEADER_BYTES
from weightshift.contracts.manifest import MAX_RANK, MAX_TENSORS, TensorType
from weightshift.errors import UnsafeArtifact

_MAX_ENTRIES = 2 * MAX_TENSORS
_ENCRYPTED = 1
_STORAGES = {
    "torch DoubleStorage": TensorType.F64,
    "torch FloatStorage": TensorType.F32,
    "torch HalfStorage": TensorType.F16,
    "torch BFloat16Storage": TensorType.BF16,
    "torch LongStorage": TensorType.I64,
    "torch IntStorage": TensorType.I32,
    "torch ShortStorage": TensorType.I16,
    "torch CharStorage": TensorType.I8,
    "torch ByteStorage": TensorType.U8,
    "torch BoolStorage": TensorType.BOOL,
}
_DICT = "collections OrderedDict"
_TENSOR = "torch._utils _rebuild_tensor_v2"
_PARAMETER = "torch._utils _rebuild_parameter"
_CALLABLE = {_DICT, _TENSOR, _PARAMETER}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor: the archive's entry that holds its elements, and how they are laid out."""

    dtype: TensorType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage: str
    storage_elements: int
    first_element: int

    @property
    def fills_its_storage(self) -> bool:
        """Whether it is contiguous and its storage holds nothing else."""
        expected, strides = 1, []
        for length in reversed(self.shape):
            strides.append(expected)
            expected *= length
        dense = all(
            length <= 1 or given == wanted
            for length, given, wanted in zip(self.shape, self.stride, reversed(strides), strict=True)
        )
        return dense and self.first_element == 0 and math.prod(self.shape) == self.storage_elements


@dataclass(frozen=True)
class _Named:
    """A global that the pickle names; never looked up."""

    name: str


@dataclass(frozen=True)
class _Storage:
    dtype: TensorType
    key: str
    elements: int


_MARK = object()


def read_state_dict(source: BinaryIO) -> dict[str, StoredTensor]:
    """Return the tensors of an open state-dict file by name. Raises `UnsafeArtifact`."""
    with archive_errors(), zipfile.ZipFile(source) as archive:
        sizes, root = _entries(archive)
        if sizes.get(f"{root}/data.pkl", MAX_HEADER_BYTES + 1) > MAX_HEADER_BYTES:
            raise _refusal(f"its data.pkl is missing or larger than {MAX_HEADER_BYTES} bytes")
        tensors = _interpret(archive.read(f"{root}/data.pkl"))
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, sizes.get(f"{root}/data/{tensor.storage}"))
    return tensors


@contextmanager
def archive_errors() -> Iterator[None]:
    """Raise `UnsafeArtifact` for whatever a zip archive that is read inside can be wrong in."""
    try:
        yield
    except (zipfile.BadZipFile, OSError, EOFError, OverflowError, RuntimeError, ValueError) as error:
        raise _refusal("it is not a readable zip archive") from error


def _refusal(reason: str) -> UnsafeArtifact:
    return UnsafeArtifact(
        f"The state dict is refused: {reason}; save `module.state_dict()` with torch.save, or safetensors."
    )


def _entries(archive: zipfile.ZipFile) -> tuple[dict[str, int], str]:
    """Return the sizes of the archive's entries, and the folder they all are in."""
    entries = archive.infolist()
    sizes = {entry.filename: entry.file_size for entry in entries}
    if not 1 <= len(entries) <= _MAX_ENTRIES or len(sizes) != len(entries):
        raise _refusal("its archive is empty, too full, or has an entry twice")
    if any(entry.flag_bits & _ENCRYPTED for entry in entries):
        raise _refusal("its archive is encrypted")
    if any(
        entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size
        for entry in entries
    ):
        raise _refusal("its archive is compressed")
    return sizes, entries[0].filename.partition("/")[0]


def _check_tensor(name: str, tensor: StoredTensor, stored_bytes: int | None) -> None:
    if not tensor.fills_its_storage:
        raise UnsafeArtifact(
            f"Tensor {name[:100]!r} is not contiguous or is part of a larger one; "
            "save it with .contiguous().clone()."
        )
    if stored_bytes != tensor.storage_elements * tensor.dtype.bytes:
        raise _refusal(f"tensor {name[:100]!r} does not have the bytes its shape needs")


def _interpret(content: bytes) -> dict[str, StoredTensor]:
    machine = _Machine()
    try:
        for instruction, argument, _ in pickletools.genops(io.BytesIO(content)):
            machine.run(instruction.name, argument)
        return _named_tensors(machine.result)
    except (ValueError, LookupError, TypeError):
        raise _refusal("its data.pkl holds more than a plain dictionary of tensors") from None


def _named_tensors(result: object) -> dict[str, StoredTensor]:
    if not isinstance(result, dict) or not 1 <= len(result) <= MAX_TENSORS:
        raise ValueError("no dictionary, or an empty or too large one")
    if not all(isinstance(key, str) and isinstance(value, StoredTensor) for key, value in result.items()):
        raise ValueError("something other than tensors by name")
    return result


class _Machine:
    """The pickle's stack and memo, over descriptions instead of objects."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self.result: object = None

    def run(self, instruction: str, argument: Any) -> None:
        """Carry out one instruction. Raises `ValueError`, `LookupError`, `TypeError`."""
        if instruction in _LITERALS:
            self._stack.append(argument)
        elif instruction not in ("PROTO", "FRAME"):
            _INSTRUCTIONS[instruction](self, argument)

    def push(self, value: object) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def pop_to_mark(self) -> list[Any]:
        """Take everything above the last mark."""
        start = len(self._stack) - 1 - self._stack[::-1].index(_MARK)
        taken = self._stack[start + 1 :]
        del self._stack[start:]
        return taken

    def pop(self, count: int) -> list[Any]:
        """Take the last values."""
        if len(self._stack) < count:
            raise ValueError("too few values")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def put(self, position: int | None) -> None:
        """Remember the top of the stack."""
        self._memo[len(self._memo) if position is None else position] = self._stack[-1]

    def get(self, position: int) -> None:
        """Recall a value."""
        self._stack.append(self._memo[position])

    def name_global(self, name: str) -> None:
        """Name one of the globals that a state dict needs."""
        if name not in _CALLABLE and name not in _STORAGES:
            raise ValueError(name)
        self._stack.append(_Named(name))

    def name_stacked_global(self) -> None:
        """Name a global whose module and name are on the stack."""
        module, name = self.pop(2)
        self.name_global(f"{module} {name}")

    def load_storage(self) -> None:
        """Take the description of a storage."""
        match self._stack.pop():
            case ("storage", _Named(name), str(key), str(), int(elements)) if elements >= 0:
                self._stack.append(_Storage(_STORAGES[name], key, elements))
            case _:
                raise ValueError("not a storage")

    def reduce(self) -> None:
        """Describe the one call among the allowed ones."""
        function, arguments = self.pop(2)
        match function, arguments:
            case _Named(name), () if name == _DICT:
                self._stack.append({})
            case _Named(name), (StoredTensor() as tensor, bool(), dict()) if name == _PARAMETER:
                self._stack.append(tensor)
            case _Named(name), (
                _Storage() as storage,
                int(first),
                tuple(shape),
                tuple(stride),
                bool(),
                dict(),
            ) if name == _TENSOR:
                self._stack.append(_tensor(storage, first, shape, stride))
            case _:
                raise ValueError("not a call a state dict needs")

    def set_items(self, items: list[Any]) -> None:
        """Put keys and values into the dictionary on top of the stack; a key occurs once."""
        target = self._stack[-1]
        for key, value in zip(items[::2], items[1::2], strict=True):
            if key in target:
                raise ValueError("a key occurs twice")
            target[key] = value

    def build(self) -> None:
        """Drop the attributes of a dictionary (torch keeps version numbers there)."""
        if not isinstance(self._stack.pop(), dict) or not isinstance(self._stack[-1], dict):
            raise TypeError("attributes of something else")

    def stop(self) -> None:
        """Take the result."""
        (self.result,) = self._stack


def _tensor(storage: _Storage, first: int, shape: tuple[Any, ...], stride: tuple[Any, ...]) -> StoredTensor:
    whole = all(type(length) is int and length >= 0 for length in (*shape, *stride, first))
    if not whole or len(shape) > MAX_RANK or len(shape) != len(stride):
        raise ValueError("no shape")
    return StoredTensor(storage.dtype, shape, stride, storage.key, storage.elements, first)


_LITERALS = {
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "NONE",
}
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": lambda machine, _: machine.push(_MARK),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_to_mark())),
    "TUPLE1": lambda machine, _: machine.push(tuple(machine.pop(1))),
    "TUPLE2": lambda machine, _: machine.push(tuple(machine.pop(2))),
    "TUPLE3": lambda machine, _: machine.push(tuple(machine.pop(3))),
    "BINPUT": lambda machine, position: machine.put(position),
    "LONG_BINPUT": lambda machine, position: machine.put(position),
    "MEMOIZE": lambda machine, _: machine.put(None),
    "BINGET": lambda machine, position: machine.get(position),
    "LONG_BINGET": lambda machine, position: machine.get(position),
    "GLOBAL": lambda machine, name: machine.name_global(name),
    "STACK_GLOBAL": lambda machine, _: machine.name_stacked_global(),
    "BINPERSID": lambda machine, _: machine.load_storage(),
    "REDUCE": lambda machine, _: machine.reduce(),
    "SETITEM": lambda machine, _: machine.set_items(machine.pop(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_to_mark()),
    "BUILD": lambda machine, _: machine.build(),
    "STOP": lambda machine, _: machine.stop(),
}

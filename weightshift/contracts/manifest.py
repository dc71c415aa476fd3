"""The artifact manifest: what an immutable set of weights consists of."""

import hashlib
import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import rfc8785
from pydantic import Field, StringConstraints, field_validator

from weightshift.contracts.base import Digest, Document, Message, Name

MAX_FILES = 1_000
MAX_FILE_BYTES = 1 << 40
MAX_TENSORS = 10_000
MAX_RANK = 8
_SEGMENT = re.compile(r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}$")
_RESERVED = {"manifest.json"}


class WeightFormat(StrEnum):
    """The serialisation a runtime can load; neither of them executes code when loaded."""

    STATE_DICT = "pytorch-state-dict"
    SAFETENSORS = "safetensors"


class Precision(StrEnum):
    """The floating-point type the weights declare."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


class ManifestFile(Document):
    """One file of an artifact: its relative path, SHA-256 and size in bytes."""

    path: str
    sha256: Digest
    bytes: int = Field(ge=0, le=MAX_FILE_BYTES)

    @field_validator("path")
    @classmethod
    def _safe(cls, value: str) -> str:
        segments = value.split("/")
        if not 1 <= len(segments) <= 4 or not all(_SEGMENT.fullmatch(part) for part in segments):
            raise ValueError("path needs one to four segments of [A-Za-z0-9._-], none starting with a dot")
        if value.lower() in _RESERVED:
            raise ValueError(f"path {value!r} is reserved")
        return value


TensorName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,256}$")]
Extent = Annotated[int, Field(ge=0, le=1 << 40)]


class TensorType(StrEnum):
    """The element types an artifact may hold, as safetensors spells them."""

    F64 = "F64"
    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    I64 = "I64"
    I32 = "I32"
    I16 = "I16"
    I8 = "I8"
    U8 = "U8"
    BOOL = "BOOL"

    @property
    def bytes(self) -> int:
        """Size of one element."""
        return _ELEMENT_BYTES[self]


_ELEMENT_BYTES = {
    TensorType.F64: 8,
    TensorType.F32: 4,
    TensorType.F16: 2,
    TensorType.BF16: 2,
    TensorType.I64: 8,
    TensorType.I32: 4,
    TensorType.I16: 2,
    TensorType.I8: 1,
    TensorType.U8: 1,
    TensorType.BOOL: 1,
}


class ManifestTensor(Document):
    """One tensor of the weights, so that a runtime knows what fits before it downloads anything."""

    name: TensorName
    dtype: TensorType
    shape: tuple[Extent, ...] = Field(max_length=MAX_RANK)


class Requirements(Document):
    """Version ranges (PEP 440 specifiers) the artifact needs from the runtime it is loaded by."""

    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None


class Manifest(Document):
    """Everything that identifies an artifact. Its digest is the artifact's identity."""

    model: Name
    artifact_id: Name
    runtime: WeightFormat
    feature_schema: Name
    precision: Precision
    files: tuple[ManifestFile, ...] = Field(min_length=1, max_length=MAX_FILES)
    architecture: Name | None = None
    requires: Requirements | None = None
    base_artifact_id: Name | None = None
    created_at: datetime | None = None
    labels: dict[Name, str] = Field(default_factory=dict, max_length=100)
    tensors: tuple[ManifestTensor, ...] | None = Field(default=None, max_length=MAX_TENSORS)

    @field_validator("files")
    @classmethod
    def _no_collisions(cls, files: tuple[ManifestFile, ...]) -> tuple[ManifestFile, ...]:
        folded = [file.path.lower() for file in files]
        if len(set(folded)) != len(folded):
            raise ValueError("two files have the same path, or paths that differ only in case")
        return files

    @field_validator("tensors")
    @classmethod
    def _named_once(cls, tensors: tuple[ManifestTensor, ...] | None) -> tuple[ManifestTensor, ...] | None:
        if tensors is not None and len({tensor.name for tensor in tensors}) != len(tensors):
            raise ValueError("two tensors have the same name")
        return tensors

    def canonical_bytes(self) -> bytes:
        """Return the RFC 8785 form, over which the digest and the signature are computed."""
        document: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return rfc8785.dumps(document)

    def digest(self) -> str:
        """Return the SHA-256 of the canonical bytes: the artifact's identity."""
        return hashlib.sha256(self.canonical_bytes()).hexdigest()

    @property
    def total_bytes(self) -> int:
        """Size of all files together, in bytes."""
        return sum(file.bytes for file in self.files)


class ArtifactState(StrEnum):
    """Only a `ready` artifact can be published; a rejected one never can again."""

    PENDING = "pending"
    READY = "ready"
    REJECTED = "rejected"


class ArtifactRecord(Message):
    """The registry's row about an artifact. The registry alone writes the fields from `state` on.

    `signature_sha256` names the stored signature over the manifest; None for an unsigned artifact.
    """

    model: Name
    artifact_id: Name
    manifest_uri: str
    manifest_sha256: Digest
    feature_schema: Name
    signature_sha256: Digest | None = None
    state: ArtifactState = ArtifactState.PENDING
    created_at: datetime | None = None
    pushed_by: str = ""
    approvers: tuple[str, ...] = ()

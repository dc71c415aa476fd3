"""Where a `pytorch-state-dict` file keeps its tensors, so that they are read like any other weights.

`torch.load` is never called: the archive's entries are stored as they are, and every tensor fills its
entry, so its bytes can be read and hashed in place. The pickle is only described, never executed.
"""

import zipfile
from typing import BinaryIO, cast

from runtime.cached_artifact import is_lost
from runtime.recorded_file import RecordedFile
from runtime.safetensors_header import TORCH_TYPES, TensorEntry, WeightsHeader
from weightshift.artifacts.state_dict_header import archive_errors, read_state_dict
from weightshift.errors import UnsafeArtifact

_LOCAL_HEADER_BYTES = 30
_LOCAL_SIGNATURE = b"PK\x03\x04"


def read_state_dict_header(descriptor: int) -> WeightsHeader:
    """Locate the tensors of an open state-dict file. Raises `UnsafeArtifact`, and what a disk raises."""
    recorded = _ArchiveFile(descriptor)
    # It does all that is done with it here.
    source = cast("BinaryIO", recorded)
    try:
        stored = read_state_dict(source)
        with archive_errors():
            places = _places(source, file_size=recorded.size)
    except UnsafeArtifact:
        if recorded.lost is not None:
            # The archive may be as it should be; the disk is not.
            raise recorded.lost from None
        raise
    entries = []
    for name, tensor in stored.items():
        offset, size = places[tensor.storage]
        entries.append(TensorEntry(name, TORCH_TYPES[tensor.dtype], tensor.shape, offset, size))
    by_offset = tuple(sorted(entries, key=lambda entry: entry.offset))
    return WeightsHeader(parsed=recorded.spans, entries=by_offset)


class _ArchiveFile(RecordedFile):
    """Remembers the error of a disk, which whoever reads an archive takes for one of the archive."""

    lost: OSError | None = None

    def readinto(self, target: memoryview | bytearray) -> int:  # type: ignore[override]
        """Read as any file does."""
        try:
            return super().readinto(target)
        except OSError as error:
            self.lost = error if is_lost(error) else None
            raise


def _places(source: BinaryIO, *, file_size: int) -> dict[str, tuple[int, int]]:
    """Return where each storage's bytes begin, and how many they are."""
    with zipfile.ZipFile(source) as archive:
        entries = archive.infolist()
        _check_byte_order(archive)
        found = {entry.filename.partition("/data/")[2]: _place(source, entry) for entry in entries}
    position = 0
    for offset, size in sorted(found.values()):
        if offset < position or offset + size > file_size:
            raise UnsafeArtifact("The state dict is refused: entries of its archive overlap; save it again.")
        position = offset + size
    return found


def _place(source: BinaryIO, entry: zipfile.ZipInfo) -> tuple[int, int]:
    # The name and the padding before the data are as long as the entry itself says, not the directory.
    source.seek(entry.header_offset)
    header = source.read(_LOCAL_HEADER_BYTES)
    if len(header) != _LOCAL_HEADER_BYTES or not header.startswith(_LOCAL_SIGNATURE):
        raise UnsafeArtifact("The state dict is refused: its archive's directory is wrong; save it again.")
    name_bytes, extra_bytes = (int.from_bytes(header[start : start + 2], "little") for start in (26, 28))
    return entry.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes, entry.file_size


def _check_byte_order(archive: zipfile.ZipFile) -> None:
    orders = [entry for entry in archive.infolist() if entry.filename.endswith("/byteorder")]
    for entry in orders:
        if entry.file_size != len(b"little") or archive.read(entry) != b"little":
            raise UnsafeArtifact(
                "The state dict is refused: it is not little-endian; save it on another machine."
            )

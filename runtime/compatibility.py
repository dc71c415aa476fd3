"""What this runtime build is, and whether an artifact's requirements allow it."""

import re
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from weightshift.contracts.instance import CPU
from weightshift.contracts.manifest import Requirements
from weightshift.errors import IncompatibleModel

_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_DRIVER_VERSION = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+(\d+(?:\.\d+)+)")


@cache
def runtime_build() -> str:
    """Return the name of this build: what has to be equal for two instances to behave alike."""
    cuda = f"+cuda-{torch.version.cuda}" if torch.version.cuda else ""
    return f"weightshift-{version('weightshift')}+torch-{torch.__version__}{cuda}"


@cache
def device_model(device: str) -> str:
    """Return what a device is called by its maker, by which instances with other ones are told apart."""
    return torch.cuda.get_device_name() if device == "cuda" else CPU


def check_requirements(requires: Requirements | None) -> None:
    """Raise `IncompatibleModel` if the artifact asks for versions this runtime does not have."""
    if requires is None:
        return
    present = {
        "torch": torch.__version__.partition("+")[0],
        "cuda": torch.version.cuda,
        "driver": _driver_version(),
    }
    for name, found in present.items():
        if (wanted := getattr(requires, name)) is not None:
            _check(name, wanted, found)


def _check(name: str, wanted: str, found: str | None) -> None:
    try:
        satisfied = found is not None and SpecifierSet(wanted).contains(found, prereleases=True)
    except InvalidSpecifier:
        raise IncompatibleModel(f"requires.{name} {wanted!r} is not a version range.") from None
    if not satisfied:
        raise IncompatibleModel(f"The artifact requires {name} {wanted}; this runtime has {found}.")


def _driver_version() -> str | None:
    try:
        found = _DRIVER_VERSION.search(_DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[1] if found else None

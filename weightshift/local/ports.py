"""Free TCP ports on the loopback address."""

import json
import random
import socket
from pathlib import Path

from weightshift.local.files import write_private

HOST = "127.0.0.1"

# Below the range that the kernel takes outgoing connections' ports from, so that none of those can
# take a port between our choosing it and a server's binding it.
_FIRST, _LAST = 15_000, 32_000
_ATTEMPTS = 200


def free_ports(count: int) -> tuple[int, ...]:
    """Return distinct ports that nothing listens on now. Raises `OSError` when there are too few."""
    found: set[int] = set()
    candidates = random.sample(range(_FIRST, _LAST), k=count + _ATTEMPTS)
    for port in candidates:
        if len(found) == count:
            break
        if _is_free(port):
            found.add(port)
    if len(found) < count:
        raise OSError(f"only {len(found)} of {count} ports are free between {_FIRST} and {_LAST}")
    return tuple(found)


def remembered_ports(file: Path, count: int) -> tuple[int, ...]:
    """Return the ports written down in `file` while all are free, else new ones, written down.

    Addresses that people have noted survive a restart this way.
    """
    ports = _read(file)
    if len(ports) != count or not all(_is_free(port) for port in ports):
        ports = free_ports(count)
        write_private(file, json.dumps(ports))
    return ports


def _read(file: Path) -> tuple[int, ...]:
    try:
        return tuple(int(port) for port in json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        return ()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True

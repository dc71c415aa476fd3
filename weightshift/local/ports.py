"""Free TCP ports on the loopback address."""

import random
import socket

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


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True

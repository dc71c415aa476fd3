"""Finding an architecture by the name in a manifest: in the entry points, or where the settings point.

Only what is installed with the service is ever imported; nothing in an artifact has a say in it.
"""

import importlib
from functools import cache
from importlib.metadata import entry_points
from typing import cast

from runtime.architectures import Architecture
from weightshift.errors import IncompatibleModel, InvalidInput

_ENTRY_POINT_GROUP = "weightshift.architectures"
_named: dict[str, Architecture] = {}


def use_architectures(places: str) -> None:
    """Add the architectures at `module:Class`, several with commas between; they win over entry points.

    Raises `InvalidInput`.
    """
    for place in filter(None, (part.strip() for part in places.split(","))):
        module, _, attribute = place.partition(":")
        try:
            architecture = cast(Architecture, getattr(importlib.import_module(module), attribute)())
            _named[architecture.name] = architecture
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"WEIGHTSHIFT_RUNTIME_ARCHITECTURES {place!r} cannot be used ({error}); "
                "name an installed module and a class, module:Class."
            ) from error
    find_architecture.cache_clear()


@cache
def find_architecture(name: str) -> Architecture:
    """Return the architecture of this name. Raises `IncompatibleModel` when there is none."""
    if name in _named:
        return _named[name]
    for entry in entry_points(group=_ENTRY_POINT_GROUP, name=name):
        return cast(Architecture, entry.load()())
    raise IncompatibleModel(f"This runtime build has no architecture {name!r}; deploy one that does.")

"""What to tell somebody whom nothing answers, and who has not said where everything is."""

import os
from pathlib import Path

_PLACES = ("WEIGHTSHIFT_TEMPORAL_ADDRESS", "WEIGHTSHIFT_REGISTRY_URL")
"""Variables that a running local stack fills, and so does everybody who has no local stack."""


def without_stack(directory: Path) -> str:
    """Say that no local stack was found in `directory`; empty for who has said where everything is."""
    if any(name in os.environ for name in _PLACES):
        return ""
    return (
        f"No local stack runs in {directory}: start one with `weightshift local up`, or name the directory "
        "of a running one with --dir."
    )

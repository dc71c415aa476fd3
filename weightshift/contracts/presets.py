"""Plans to start from, by name."""

from collections.abc import Mapping

PRESETS: Mapping[str, Mapping[str, object]] = {
    "fast": {"stages": [25, 100], "window": "3m", "max_window": "20m", "retain": "10m"},
    "standard": {},
    "careful": {
        "stages": [1, 5, 10, 25, 50, 100],
        "window": "30m",
        "max_window": "6h",
        "min_samples": 1_000,
        "retain": "6h",
    },
}
"""Starting points a plan may name with `preset`; what it states itself wins. `standard` is the default."""


def from_preset(document: dict[str, object]) -> dict[str, object]:
    """Fill a plan from the preset it names. Raises `ValueError` for one that does not exist."""
    stated = {name: value for name, value in document.items() if name != "preset"}
    preset = document["preset"]
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ValueError(f"preset: one of {', '.join(PRESETS)}")
    return {**PRESETS[preset], **stated}

"""A meter that tells what an activity counted."""

from collections.abc import Mapping
from typing import Any


class CountingMeter:
    """Stands in for the SDK's meter; `counted` holds the names, with how much was added."""

    def __init__(self) -> None:
        self.counted: dict[str, int] = {}

    def with_additional_attributes(self, attributes: Mapping[str, Any]) -> "CountingMeter":
        return self

    def create_counter(self, name: str, description: str | None = None, unit: str | None = None) -> Any:
        meter = self

        class Counter:
            def add(self, value: int, additional_attributes: Mapping[str, Any] | None = None) -> None:
                meter.counted[name] = meter.counted.get(name, 0) + value

        return Counter()

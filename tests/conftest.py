"""Fixtures every kind of test shares."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _scrubbed_environment() -> Iterator[None]:
    """No setting of the machine may reach a test."""
    found = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("WEIGHTSHIFT_")}
    yield
    os.environ.update(found)

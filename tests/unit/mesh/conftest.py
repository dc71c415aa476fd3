"""Tests of what both kinds of objects have in common run for each."""

import pytest

from tests.unit.mesh.route_kinds import GATEWAY, ISTIO, Kind


@pytest.fixture(params=[ISTIO, GATEWAY], ids=lambda kind: kind.plural)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found

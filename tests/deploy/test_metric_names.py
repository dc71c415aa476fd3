"""Every query that is shipped asks for series that a process really exposes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.instance import Instance
from runtime.settings import RuntimeSettings
from tests.deploy.conftest import Promtool
from tests.deploy.manifests import DEPLOY
from tests.deploy.metric_names import WORKER_SERIES, asked_names, exposed_names
from tests.deploy.test_alerts import ALERTS, adapter_queries
from weightshift.artifacts.open_store import open_store
from weightshift.contracts.health import RegistryHealth
from weightshift.contracts.identity import Cohort
from weightshift.registry.client import RegistryClient
from weightshift.registry.exposition import render
from weightshift.settings import StoreSettings

DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "dashboards/weightshift.json").read_text())


def queries() -> Iterator[tuple[str, str]]:
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]
    for number, query in enumerate(adapter_queries()):
        yield f"adapter {number}", query
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


QUERIES = list(queries())
IDS = [name for name, _ in QUERIES]


async def runtime_series(directory: Path) -> set[str]:
    settings = RuntimeSettings(
        model="ranker",
        environment="production",
        cohort=Cohort.STABLE,
        instance_id="ranker-stable-0",
        admin_token="a-token-for-tests",
        cache_dir=directory / "cache",
        insecure_unsigned=True,
    )
    store = open_store(StoreSettings(url=f"file://{directory}/store"))
    instance = Instance(
        settings=settings, store=store, client=RegistryClient(url="http://127.0.0.1:9", token="")
    )
    names = exposed_names((await instance.render_metrics()).decode())
    await instance.close()
    return names


@pytest.fixture(scope="module")
async def exposed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all our processes' series, and Prometheus' own."""
    of_registry = exposed_names(render(RegistryHealth(), waiting=0).decode())
    of_runtime = await runtime_series(tmp_path_factory.mktemp("runtime"))
    assert "weightshift_requests_total" in of_runtime
    assert "weightshift_registry_lost_instances" in of_registry
    return of_registry | of_runtime | WORKER_SERIES


@pytest.mark.parametrize("query", [query for _, query in QUERIES], ids=IDS)
def test_a_query_asks_for_series_that_exist(query: str, exposed: set[str]) -> None:
    asked = asked_names(query)
    assert asked or "up{" in query
    assert asked <= exposed


def test_the_dashboards_queries_are_valid(tmp_path: Path, promtool: Promtool) -> None:
    expressions = [
        target["expr"].replace("$model", "m").replace("$environment", "e")
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]
    rules = [{"record": f"panel:{i}", "expr": text} for i, text in enumerate(expressions)]
    (tmp_path / "dashboard.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "dashboard.yaml")


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        assert all(x < 24 for x, _ in cells)
        taken |= cells

"""The alert rules hold what they promise, and somebody wrote down what to do about each."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import Promtool
from tests.deploy.manifests import DEPLOY, ROOT, find

RULES = DEPLOY / "alerts/rules.yaml"
RULE_TESTS = DEPLOY / "alerts/rules.test.yaml"
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text())["spec"]["groups"] for rule in group["rules"]
]
ADAPTER = yaml.safe_load((DEPLOY / "autoscaling/prometheus-adapter-values.yaml").read_text())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the rules lie as Prometheus reads them, beside their tests."""
    found = tmp_path_factory.mktemp("rules")
    groups = yaml.safe_load(RULES.read_text())["spec"]
    (found / "rules.groups.yaml").write_text(yaml.safe_dump(groups))
    (found / RULE_TESTS.name).write_text(RULE_TESTS.read_text())
    return found


def test_the_rules_are_valid(directory: Path, promtool: Promtool) -> None:
    promtool("check", "rules", directory / "rules.groups.yaml")


def test_the_rules_do_what_their_tests_say(directory: Path, promtool: Promtool) -> None:
    promtool("test", "rules", directory / RULE_TESTS.name)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_is_tested_both_ways(alert: dict[str, Any]) -> None:
    cases = [
        case
        for one in yaml.safe_load(RULE_TESTS.read_text())["tests"]
        for case in one["alert_rule_test"]
        if case["alertname"] == alert["alert"]
    ]
    assert any(case.get("exp_alerts") for case in cases)
    assert any(not case.get("exp_alerts") for case in cases)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(alert: dict[str, Any]) -> None:
    document, _, anchor = alert["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / document).read_text(), re.MULTILINE)
    assert anchor == alert["alert"].lower()
    assert alert["alert"] in headings
    assert alert["labels"]["severity"] in {"page", "ticket"}


def test_the_autoscalers_ask_for_what_the_adapter_offers(directory: Path, promtool: Promtool) -> None:
    offered = {rule["name"]["as"] for rule in ADAPTER["rules"]["custom"]}
    for cohort in ("stable", "canary"):
        metrics = find("istio", "HorizontalPodAutoscaler", f"ranker-{cohort}")["spec"]["metrics"]
        assert {one["pods"]["metric"]["name"] for one in metrics} == offered


def test_the_adapters_queries_are_valid(directory: Path, promtool: Promtool) -> None:
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(adapter_queries())]
    file = directory / "adapter.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "adapter", "rules": rules}]}))
    promtool("check", "rules", file)


def adapter_queries() -> list[str]:
    """Return what the adapter asks Prometheus for one pod."""
    return [
        rule["metricsQuery"]
        .replace("<<.Series>>", rule["seriesQuery"].partition("{")[0])
        .replace("<<.LabelMatchers>>", 'namespace="n",pod="p"')
        .replace("<<.GroupBy>>", "pod")
        for rule in ADAPTER["rules"]["custom"]
    ]

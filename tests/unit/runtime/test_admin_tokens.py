"""Which token is enough for what on the admin port."""

from typing import Any

import pytest
from pydantic import ValidationError

from runtime.settings import RuntimeSettings

METRICS_TOKEN = "a-token-for-scrapes"
SCRAPE = {"authorization": f"Bearer {METRICS_TOKEN}"}
REQUIRED = {"model": "ranker", "environment": "test", "cohort": "stable", "instance_id": "a"}


async def test_the_metrics_token_reads_metrics_and_nothing_else(world: Any) -> None:
    async with world.running(metrics_token=METRICS_TOKEN) as instance, world.admin_client(instance) as admin:
        scraped = await admin.get("/metrics", headers=SCRAPE)
        assert scraped.status_code == 200
        assert "weightshift_generations_resident" in scraped.text
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            for path in ("/admin/status", "/admin/drain", "/admin/reconcile", "/metrics", "/metrics/", "/"):
                if (method, path) != ("GET", "/metrics"):
                    answer = await admin.request(method, path, headers=SCRAPE)
                    assert answer.status_code == 401, (method, path)
        assert not instance.report().draining
        assert (await admin.get("/metrics")).status_code == 200, "the admin token reads them too"


async def test_without_a_metrics_token_the_admin_token_is_the_only_one(world: Any) -> None:
    async with world.running() as instance, world.admin_client(instance) as admin:
        for token in (METRICS_TOKEN, "", "None"):
            headers = {"authorization": f"Bearer {token}"}
            assert (await admin.get("/metrics", headers=headers)).status_code == 401


@pytest.mark.parametrize("token", ["a-token-of-the-admin", "short"])
def test_a_metrics_token_that_allows_too_much_or_is_guessed_is_refused(token: str) -> None:
    with pytest.raises(ValidationError) as refused:
        RuntimeSettings.model_validate(
            {**REQUIRED, "admin_token": "a-token-of-the-admin", "metrics_token": token}
        )
    (problem,) = refused.value.errors(include_url=False)
    assert problem["loc"] == ("metrics_token",)
    assert token not in problem["msg"]


def test_an_empty_variable_is_no_metrics_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**REQUIRED, "admin_token": "a-token-of-the-admin", "metrics_token": ""}.items():
        monkeypatch.setenv(f"WEIGHTSHIFT_RUNTIME_{name.upper()}", value)
    assert RuntimeSettings().metrics_token is None

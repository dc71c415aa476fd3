"""The real process whose model hangs: every request that gets no answer is seen in what it counts."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

PATIENCE = 2.0
WAITS = {"x-envoy-expected-rq-timeout-ms": str(int(PATIENCE * 1000))}


async def counts(runtime: Any) -> dict[str, float]:
    """How many requests were counted under each code."""
    exposition = (await runtime.admin.get("/metrics")).text
    pattern = r'^weightshift_requests_total\{artifact="v41",code="(\d+)".*\} (\S+)$'
    pairs = re.findall(pattern, exposition, re.MULTILINE)
    return {code: float(count) for code, count in pairs}


async def test_requests_that_hang_are_counted_and_end_before_the_proxys_patience(
    bench: Any, control: Any, tmp_path: Path
) -> None:
    await control.publish("v41")
    hang = tmp_path / "hang"
    async with bench.running(control, tmp_path, ARCHITECTURES="gated_models:HangingRanker") as runtime:
        await bench.until(runtime.is_ready)
        body = runtime.expectations.bodies[0]
        (tensor,) = (await runtime.data.get("/v2/models/ranker")).json()["inputs"]
        rows = {**tensor, "shape": [1, 88], "data": [0.5] * 88}
        hang.touch()
        for path, request in (
            ("/predict", {"content": body}),
            ("/v2/models/ranker/infer", {"json": {"inputs": [rows]}}),
        ):
            answer = await runtime.data.post(path, headers=WAITS, timeout=PATIENCE, **request)
            assert answer.status_code == 504, answer.text
            assert answer.headers["x-weightshift-artifact"] == "v41"
        with pytest.raises(httpx.ReadTimeout):
            await runtime.data.post("/predict", content=body, timeout=0.3)

        async def is_missed() -> bool:
            return (await counts(runtime))["499"] == 1

        await bench.until(is_missed)
        assert await runtime.is_ready()
        hang.unlink()
        assert (await runtime.data.post("/predict", headers=WAITS, content=body)).status_code == 200
        assert await counts(runtime) == {"200": 1, "400": 0, "499": 1, "500": 0, "503": 0, "504": 2}

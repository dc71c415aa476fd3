"""A public client of the Open Inference Protocol, in an environment of its own, against the real process."""

import asyncio
import json
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("tritonclient[http]==2.73.0",)
INSTALL_SECONDS = 240

# Asks for metadata, infers with binary and with JSON tensors, and prints what came back.
SCRIPT = """
import json, sys
import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

client = InferenceServerClient(sys.argv[1])
rows = np.array(json.loads(sys.stdin.read()), dtype=np.float32)

def infer(binary, model="ranker"):
    given = InferInput("rows", list(rows.shape), "FP32")
    given.set_data_from_numpy(rows, binary_data=binary)
    wanted = [InferRequestedOutput("scores", binary_data=binary)]
    return client.infer(model, [given], outputs=wanted, request_id="1").as_numpy("scores").tolist()

try:
    infer(True, model="other")
    refusal = None
except InferenceServerException as error:
    refusal = error.message()
print(json.dumps({
    "live": client.is_server_live(),
    "ready": client.is_server_ready(),
    "model_ready": client.is_model_ready("ranker"),
    "server": client.get_server_metadata()["name"],
    "inputs": client.get_model_metadata("ranker")["inputs"],
    "binary": infer(True),
    "json": infer(False),
    "refusal": refusal,
}))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("client")
    venv.create(directory, with_pip=True)
    python = directory / "bin/python"
    command = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the client could not be installed in time")
    if done.returncode != 0:
        pytest.skip(f"the client cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return python


async def test_a_public_client_gets_the_scores_that_predict_ranks_by(
    bench: Any, control: Any, python: Path, tmp_path: Path
) -> None:
    await control.publish("v41")
    async with bench.running(control, tmp_path) as runtime:
        await bench.until(runtime.is_ready)
        body = json.loads(runtime.expectations.bodies[0])
        rows = [candidate + body["context"] for candidate in body["candidates"]]
        address = f"{runtime.data.base_url.host}:{runtime.data.base_url.port}"
        process = await asyncio.create_subprocess_exec(
            str(python), "-c", SCRIPT, address, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(json.dumps(rows).encode()), 60)
    assert process.returncode == 0
    seen = json.loads(output)
    assert (seen["live"], seen["ready"], seen["model_ready"]) == (True, True, True)
    assert seen["server"] == "weightshift"
    assert seen["inputs"] == [{"name": "rows", "datatype": "FP32", "shape": [-1, 88]}]
    assert seen["json"] == pytest.approx(seen["binary"], abs=1e-5)
    for item in runtime.expectations.answers["v41"][0]:
        assert seen["binary"][item.candidate] == pytest.approx(item.score, abs=1e-4)
    assert "no such route, model" in seen["refusal"]

"""The Open Inference Protocol against its published schema, without a client library."""

import json
from typing import Any

import numpy as np
import pytest

ROWS = [[0.25] * 80 + [0.5] * 8, [1.0] * 80 + [0.5] * 8]
PREDICT = {"context": [0.5] * 8, "candidates": [row[:80] for row in ROWS], "top": 2}


def request(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "rows", "shape": [2, 88], "datatype": "FP32", "data": ROWS, **changes}
    return {"inputs": [{name: value for name, value in tensor.items() if value is not None}]}


@pytest.fixture
async def client(world: Any, artifacts: Any) -> Any:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        yield client
        for generation in instance.holder.resident:
            assert generation.references == 0


async def test_metadata_and_health_follow_the_schema(client: Any) -> None:
    server = (await client.get("/v2")).json()
    assert set(server) == {"name", "version", "extensions"}
    model = (await client.get("/v2/models/ranker")).json()
    assert model["versions"] == ["1"]
    assert model["inputs"] == [{"name": "rows", "datatype": "FP32", "shape": [-1, 88]}]
    assert model["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": [-1]}]
    assert (await client.get("/v2/models/ranker/ready")).status_code == 200
    other = await client.get("/v2/models/other")
    assert other.status_code == 404
    assert isinstance(other.json()["error"], str)


@pytest.mark.parametrize("data", [ROWS, [value for row in ROWS for value in row]])
async def test_scores_are_the_ones_that_predict_ranks_by(client: Any, data: object) -> None:
    answer = (await client.post("/v2/models/ranker/infer", json={"id": "7", **request(data=data)})).json()
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("ranker", "1", "7")
    (output,) = answer["outputs"]
    assert (output["name"], output["shape"], output["datatype"]) == ("scores", [2], "FP32")
    ranked = (await client.post("/predict", json=PREDICT)).json()["items"]
    for item in ranked:
        assert output["data"][item["index"]] == pytest.approx(item["score"], abs=1e-5)


async def test_binary_tensors_both_ways(client: Any) -> None:
    tail = np.array(ROWS, dtype="<f4").tobytes()
    document = request(data=None, parameters={"binary_data_size": len(tail)})
    document["outputs"] = [{"name": "scores", "parameters": {"binary_data": True}}]
    head = json.dumps(document).encode()
    answer = await client.post(
        "/v2/models/ranker/infer",
        content=head + tail,
        headers={"inference-header-content-length": str(len(head))},
    )
    length = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.content[:length])["outputs"]
    assert output["parameters"]["binary_data_size"] == len(answer.content) - length
    plain = (await client.post("/v2/models/ranker/infer", json=request())).json()["outputs"][0]["data"]
    assert np.frombuffer(answer.content[length:], dtype="<f4").tolist() == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "object"),
        ({}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({**request(), "other": 1}, "other"),
        (request(name="x"), "rows"),
        (request(datatype="FP64"), "FP32"),
        (request(shape=[2, 87]), "shape"),
        (request(shape=[]), "shape"),
        (request(shape=[0, 88]), "shape"),
        (request(shape=[True, 88]), "shape"),
        (request(shape=[1 << 40, 88]), "shape"),
        (request(shape=[3, 88]), "264 numbers"),
        (request(data=None), "data"),
        (request(data=[["1"] * 88] * 2), "numbers"),
        (request(data=[[True] * 88] * 2), "numbers"),
        (request(data=[[[1.0]] * 88] * 2), "numbers"),
        (request(data=[[1e300] * 88] * 2), "deviations"),
        (request(data=[[0.0] * 88] * 65, shape=[65, 88]), "at most 64"),
        (request(data=None, parameters={"binary_data_size": 704}), "binary_data_size"),
        ({**request(), "outputs": [{"name": "other"}]}, "scores"),
        ({**request(), "outputs": [{"name": "scores", "parameters": {"binary_data": 1}}]}, "binary_data"),
        ({**request(), "id": 7}, "id"),
    ],
)
async def test_bad_requests_name_what_is_wrong(client: Any, body: object, words: str) -> None:
    answer = await client.post("/v2/models/ranker/infer", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


@pytest.mark.parametrize("length", ["-1", "x", "9999999", "9" * 5000, "0"])
async def test_a_wrong_header_length_is_refused(client: Any, length: str) -> None:
    headers = {"inference-header-content-length": length}
    answer = await client.post("/v2/models/ranker/infer", json=request(), headers=headers)
    assert answer.status_code == 400

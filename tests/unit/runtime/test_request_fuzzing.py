"""Whatever a client sends, the answer is 200 or 4xx with a reason, and nothing stays borrowed."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.runtime.test_sessions import push as push_decoder

PREDICT = {"context": [0.5] * 8, "candidates": [[0.25] * 80, [1.0] * 80], "top": 2}
INFER: dict[str, Any] = {
    "id": "1",
    "inputs": [{"name": "rows", "shape": [1, 88], "datatype": "FP32", "data": [0.5] * 88}],
    "outputs": [{"name": "scores", "parameters": {"binary_data": True}}],
}
INFER_PATH = "/v2/models/ranker/infer"
PROMPT = {"prompt": "hello", "max_tokens": 3, "samples": 2, "temperature": 0.5, "seed": 7}

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=10), inner), max_leaves=20
)


@st.composite
def almost_right(draw: st.DrawFn, document: Any) -> Any:
    """A right document with one part, at any depth, replaced or left out."""
    changed = json.loads(json.dumps(document))
    place = changed
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = draw(st.sampled_from(list(keys)))
        child = place[key]
        if isinstance(child, dict | list) and child and draw(st.integers(0, 3)):
            place = child
        elif draw(st.booleans()):
            place[key] = draw(values)
            return changed
        else:
            del place[key]
            return changed


def encoded(path: str, documents: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, bytes]]:
    return st.tuples(st.just(path), documents.map(lambda body: json.dumps(body).encode()))


def with_data(data: object) -> dict[str, Any]:
    (tensor,) = INFER["inputs"]
    return {**INFER, "inputs": [{**tensor, "data": data}]}


prompts = st.one_of(
    st.tuples(st.sampled_from(["/generate", "/predict"]), st.binary(max_size=200)),
    *(
        encoded(path, bodies)
        for path in ("/generate", "/predict")
        for bodies in (values, almost_right(PROMPT), st.text(max_size=300).map(lambda text: {"prompt": text}))
    ),
)
requests = st.one_of(
    st.tuples(st.sampled_from(["/predict", INFER_PATH, "/generate"]), st.binary(max_size=200)),
    encoded("/predict", values),
    encoded("/predict", almost_right(PREDICT)),
    encoded(INFER_PATH, values),
    encoded(INFER_PATH, almost_right(INFER)),
    encoded(INFER_PATH, almost_right([0.5] * 88).map(with_data)),
)


@pytest.fixture
async def clients(world: Any, artifacts: Any) -> AsyncIterator[Any]:
    await world.publish(artifacts.push("v1"))
    async with world.running(max_body_bytes=1 << 16) as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        yield instance, client


@pytest.fixture
async def streaming(world: Any, artifacts: Any) -> AsyncIterator[Any]:
    await world.publish(push_decoder(artifacts, "v1", 1))
    async with world.running() as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        yield instance, client


fuzzed = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@given(sent=requests, length=st.none() | st.none() | st.text("0123456789-x ", max_size=6))
@fuzzed
async def test_no_request_is_the_servers_fault(
    clients: Any, sent: tuple[str, bytes], length: str | None
) -> None:
    (instance, client), (path, content) = clients, sent
    headers = {} if length is None or path != INFER_PATH else {"inference-header-content-length": length}
    check(instance, await client.post(path, content=content, headers=headers))


@given(sent=prompts)
@fuzzed
async def test_no_prompt_is_the_models_fault(streaming: Any, sent: tuple[str, bytes]) -> None:
    (instance, client), (path, content) = streaming, sent
    answer = await client.post(path, content=content)
    check(instance, answer)
    if path == "/generate" and answer.status_code == 200:
        assert b"event: error" not in answer.content
        assert answer.content.endswith(b"event: done\ndata: {}\n\n")


def check(instance: Any, answer: Any) -> None:
    assert answer.status_code == 200 or 400 <= answer.status_code < 500
    if answer.status_code != 200:
        assert answer.json()["error"]
    assert instance.holder.current.references == 0
    assert instance.is_live

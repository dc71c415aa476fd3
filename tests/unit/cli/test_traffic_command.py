import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from weightshift.contracts.identity import Service
from weightshift.local.addresses import Addresses
from weightshift.local.identity import own_identity
from weightshift.local.state import StackState, write_state

Run = Callable[..., Any]
ANSWERS = {"v1": [[{"index": 2, "score": 1.5}]], "v2": [[{"index": 0, "score": -0.25}]]}
SHORT = ("--rate", "200", "--seconds", "0.05")


class Model(BaseHTTPRequestHandler):
    """Answers in the name of v1, v2, v1, ...; with `lies` always with what v1 says."""

    protocol_version = "HTTP/1.1"
    lies = False
    answered = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).answered += 1
        artifact = "v1" if self.answered % 2 else "v2"
        body = json.dumps({"items": ANSWERS["v1" if self.lies else artifact][0]}).encode()
        self.send_response(200)
        self.send_header("x-weightshift-artifact", artifact)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the tests' output clean."""


@pytest.fixture
def model() -> Iterator[tuple[type[Model], int]]:
    handler = type("Serving", (Model,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield handler, server.server_port
        server.shutdown()


@pytest.fixture
def stack(tmp_path: Path, model: tuple[type[Model], int]) -> Path:
    """Pretend that this process supervises a stack whose Envoy is the model."""
    nowhere = {
        name: f"http://127.0.0.1:{number}" for number, name in enumerate(Addresses.model_fields, start=1)
    }
    addresses = Addresses.model_validate(
        nowhere | {"envoy": f"http://127.0.0.1:{model[1]}", "runtimes": {}, "runtime_admins": {}}
    )
    state = StackState(
        supervisor=own_identity(),
        service=Service(model="ranker", environment="local"),
        addresses=addresses,
        environment={},
        processes={},
    )
    write_state(tmp_path, state)
    return tmp_path


@pytest.fixture
def expectations(tmp_path: Path) -> str:
    path = tmp_path / "expectations.json"
    path.write_text(json.dumps({"bodies": [{"top": 1}], "answers": ANSWERS}))
    return str(path)


def test_every_model_with_known_answers_may_answer(run: Run, stack: Path, expectations: str) -> None:
    where = ("--dir", str(stack), "--expectations", expectations, *SHORT)
    result = run("local", "traffic", *where)
    assert result.code == 0, result
    assert "10 requests, 0 failed, 0 answered wrongly; answered by v1 5, v2 5" in result.out
    assert json.loads(run("local", "traffic", *where, "--json").out)["misrouted"] == 0


def test_a_wrong_answer_is_shown_and_fails(
    run: Run, stack: Path, expectations: str, model: tuple[type[Model], int]
) -> None:
    model[0].lies = True
    result = run("local", "traffic", "--dir", str(stack), "--expectations", expectations, *SHORT)
    assert result.code == 1
    assert "v2 should answer 0:-0.2500, got 2:1.5000" in result.out
    assert "5 answered wrongly" in result.out


def test_what_is_missing_is_named_with_the_next_step(
    run: Run, stack: Path, expectations: str, tmp_path: Path
) -> None:
    nothing = run("local", "traffic", "--dir", str(stack), "--expectations", str(tmp_path / "none.json"))
    assert nothing.code == 2
    assert "python -m weightshift.local.demo_models models" in nothing.err
    (tmp_path / "other.json").write_text("{}")
    assert (
        run("local", "traffic", "--dir", str(stack), "--expectations", str(tmp_path / "other.json")).code == 2
    )
    assert (
        run("local", "traffic", "--dir", str(stack), "--expectations", expectations, "--rate", "0").code == 2
    )
    alone = run("local", "traffic", "--dir", str(tmp_path / "none"), "--expectations", expectations)
    assert alone.code == 1
    assert "weightshift local up" in alone.err

import socket
import stat
from pathlib import Path

import pytest

from weightshift.contracts.identity import Cohort, Service
from weightshift.errors import LocalStackError
from weightshift.local import control
from weightshift.local.files import secret, write_private
from weightshift.local.identity import own_identity
from weightshift.local.layout import choose_layout
from weightshift.local.ports import free_ports, remembered_ports
from weightshift.local.prometheus import ScrapeTarget, scrape_configuration
from weightshift.local.state import StackState, read_state, state_file, write_state


def counted(count: int) -> tuple[int, ...]:
    return tuple(range(20_000, 20_000 + count))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "secrets/token"
    value = secret(path)
    assert len(value) >= 32
    assert secret(path) == value
    assert secret(tmp_path / "secrets/other") != value
    assert mode(path) == 0o600


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_private(path, "old and long")
    write_private(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_ports_are_distinct_and_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_ports_are_kept_while_they_are_free(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    ports = remembered_ports(file, 3)
    assert remembered_ports(file, 3) == ports
    with socket.create_server(("127.0.0.1", ports[1])):
        others = remembered_ports(file, 3)
    assert ports[1] not in others
    assert remembered_ports(file, 3) == others
    file.write_text("not a list of ports")
    assert len(remembered_ports(file, 4)) == 4


def test_no_port_is_given_twice() -> None:
    layout = choose_layout(2, counted)
    instances = [port for instance in layout.instances for port in (instance.port, instance.admin_port)]
    single = [layout.postgres, layout.registry, layout.prometheus, layout.worker_metrics]
    given = [*single, *layout.envoy, *layout.temporal, *layout.s3, *instances]
    assert len(given) == len(set(given))
    assert set(given) == set(counted(len(given)))


def test_everything_a_process_waits_for_exists_and_never_waits_for_it() -> None:
    layout = choose_layout(2, counted)
    started: set[str] = set()
    while remaining := [name for name in layout.names if name not in started]:
        startable = {name for name in remaining if set(layout.dependencies(name)) <= started}
        assert startable, f"{remaining} wait for each other"
        started |= startable
    assert [instance.name for instance in layout.cohort(Cohort.CANARY)] == ["canary-0", "canary-1"]


def test_targets_carry_their_labels_and_credentials() -> None:
    configuration = scrape_configuration(
        [
            ScrapeTarget(job="runtime", instance="stable-0", port=1, credentials=Path("/token")),
            ScrapeTarget(job="envoy", instance="envoy", port=2, path="/stats/prometheus"),
        ]
    )
    runtime, envoy = configuration["scrape_configs"]
    assert runtime["static_configs"] == [
        {"targets": ["127.0.0.1:1"], "labels": {"job": "runtime", "instance": "stable-0"}}
    ]
    assert runtime["authorization"] == {"credentials_file": "/token"}
    assert envoy["metrics_path"] == "/stats/prometheus"
    assert "authorization" not in envoy


async def test_a_state_counts_while_its_supervisor_lives(tmp_path: Path) -> None:
    own = own_identity()
    state = StackState(
        supervisor=own,
        service=Service(model="ranker", environment="local"),
        addresses=choose_layout(1, counted).addresses,
        environment={"TOKEN": "value"},
        processes={"worker": own, "envoy": own.model_copy(update={"started": own.started + 1})},
    )
    write_state(tmp_path, state)
    assert mode(state_file(tmp_path)) == 0o600
    assert read_state(tmp_path) == state
    assert control.status(tmp_path).processes == {"worker": True, "envoy": False}
    assert control.stack_environment(tmp_path) == {"TOKEN": "value"}

    gone = own.model_copy(update={"started": own.started + 1})
    write_state(tmp_path, state.model_copy(update={"supervisor": gone}))
    assert read_state(tmp_path) is None
    assert not control.status(tmp_path).running
    assert control.stack_environment(tmp_path) == {}
    assert not (await control.down(tmp_path)).running


def test_an_unreadable_state_is_an_error(tmp_path: Path) -> None:
    state_file(tmp_path).write_text("{}")
    with pytest.raises(LocalStackError, match="remove it"):
        control.status(tmp_path)

"""Every variable in the manifests is a setting of the process that gets it, with a value it accepts."""

import inspect
from collections.abc import Sequence
from datetime import timedelta

import pytest
from pydantic_settings import BaseSettings

import runtime.settings
import weightshift.mesh.envoy_agent
import weightshift.registry.settings
import weightshift.settings
import worker
from tests.deploy.manifests import OVERLAYS, Container, all_containers, find

SettingsClass = type[BaseSettings]


def settings_of(*modules: object) -> tuple[SettingsClass, ...]:
    return tuple(
        one
        for module in modules
        for _, one in inspect.getmembers(module, inspect.isclass)
        if issubclass(one, BaseSettings) and one is not BaseSettings
    )


CONTROL = settings_of(weightshift.settings, worker)
SETTINGS_OF: dict[str, tuple[SettingsClass, ...]] = {
    "python -m worker": CONTROL,
    "python -m weightshift.registry.service": settings_of(
        weightshift.settings, weightshift.registry.settings
    ),
    "weightshift registry migrate": settings_of(weightshift.registry.settings),
    "python -m weightshift.mesh.envoy_agent": (weightshift.mesh.envoy_agent.AgentSettings,),
    "python -m runtime": (runtime.settings.RuntimeSettings, weightshift.settings.StoreSettings),
    # Temporal's own command line, told by the settings of the worker.
    "temporal": CONTROL,
    "sh -eu -c": CONTROL,
}


def ours(container: Container) -> dict[str, str]:
    """Return our variables; those from a Secret have a value of their own each, as they should."""
    return {
        name: f"a-secret-of-{name}" if value == "ref" else value
        for name, value in container.environment().items()
        if name.startswith("WEIGHTSHIFT_")
    }


def classes_of(container: Container) -> Sequence[SettingsClass]:
    return next(classes for command, classes in SETTINGS_OF.items() if container.command.startswith(command))


CONFIGURED = [one for one in all_containers() if ours(one)]


@pytest.mark.parametrize("container", CONFIGURED, ids=str)
def test_every_variable_is_a_setting(container: Container) -> None:
    known = {
        f"{one.model_config['env_prefix']}{field}".upper()
        for one in classes_of(container)
        for field in one.model_fields
    }
    assert set(ours(container)) <= known


@pytest.mark.parametrize("container", CONFIGURED, ids=str)
def test_the_process_accepts_its_variables(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ours(container).items():
        monkeypatch.setenv(name, value)
    for one in classes_of(container):
        one()


def runtime_containers(overlay: str) -> list[Container]:
    return [one for one in CONFIGURED if one.overlay == overlay and one.command == "python -m runtime"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_grace_period_covers_propagation_and_drain(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = runtime_containers(overlay)
    assert {one.environment()["WEIGHTSHIFT_RUNTIME_COHORT"] for one in found} == {"stable", "canary"}
    for container in found:
        for name, value in ours(container).items():
            monkeypatch.setenv(name, value)
        settings = runtime.settings.RuntimeSettings()
        pause = container.spec["lifecycle"]["preStop"]["sleep"]["seconds"]
        leaving = settings.propagation_seconds + settings.drain_deadline
        # Connections are closed and weights disposed of after the drain.
        assert container.pod["terminationGracePeriodSeconds"] >= pause + leaving + 30


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_and_scrapes_reach_the_ports_that_the_instance_opens(
    overlay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for container in runtime_containers(overlay):
        for name, value in ours(container).items():
            monkeypatch.setenv(name, value)
        settings = runtime.settings.RuntimeSettings()
        ports = {one["name"]: one["containerPort"] for one in container.spec["ports"]}
        assert ports == {
            "http": settings.data_port,
            "admin": settings.admin_port,
            "live": settings.live_port,
        }
        assert {settings.data_host, settings.admin_host, settings.live_host} == {"0.0.0.0"}  # noqa: S104
        probes = {
            kind: container.spec[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")
        }
        assert probes == {
            "startup": {"path": "/startupz", "port": "http"},
            "readiness": {"path": "/readyz", "port": "http"},
            "liveness": {"path": "/livez", "port": "live"},
        }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_prometheus_scrapes_runtimes_with_a_token_that_only_reads_metrics(overlay: str) -> None:
    monitor = find(overlay, "PodMonitor", "weightshift-runtime")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for container in runtime_containers(overlay):
        secrets = {
            one["name"]: one["valueFrom"]["secretKeyRef"]
            for one in container.spec["env"]
            if "secretKeyRef" in one.get("valueFrom", {})
        }
        assert endpoint["authorization"]["credentials"] == secrets["WEIGHTSHIFT_RUNTIME_METRICS_TOKEN"]
        admin = secrets["WEIGHTSHIFT_RUNTIME_ADMIN_TOKEN"]
        assert admin["name"] != endpoint["authorization"]["credentials"]["name"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_worker_may_end_gracefully(overlay: str) -> None:
    (container,) = [one for one in CONFIGURED if one.overlay == overlay and one.command == "python -m worker"]
    grace = float(container.environment()["WEIGHTSHIFT_WORKER_GRACEFUL_SHUTDOWN"])
    assert container.pod["terminationGracePeriodSeconds"] >= grace + 10


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_stages_are_judged_at_the_interval_of_the_scrapes(overlay: str) -> None:
    monitor = find(overlay, "PodMonitor", "weightshift-runtime")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = [one for one in CONFIGURED if one.overlay == overlay and one.command == "python -m worker"]
    interval = float(container.environment()["WEIGHTSHIFT_METRICS_SCRAPE_INTERVAL"])
    assert timedelta(seconds=float(endpoint["interval"].rstrip("s"))) == timedelta(seconds=interval)


@pytest.mark.parametrize("container", CONFIGURED, ids=str)
def test_no_secret_is_written_down(container: Container) -> None:
    literal = {
        one["name"]: one["value"] for one in container.spec.get("env", ()) if one.get("value") is not None
    }
    secret = [
        name
        for name in container.environment()
        if name.endswith(("_TOKEN", "_DSN", "_KEY", "_SECRET", "_KEY_ID", "_PASSWORD"))
    ]
    assert not set(secret) & set(literal)
    assert all(container.environment()[name] == "ref" for name in secret)

"""What every command gets: its arguments, a place to print to, and connections on demand."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightshift.cli.output import Output
from weightshift.contracts.identity import Service
from weightshift.errors import InvalidInput
from weightshift.settings import (
    MeshSettings,
    MetricsSettings,
    RegistrySettings,
    SigningSettings,
    StoreSettings,
    TemporalSettings,
)

if TYPE_CHECKING:
    from weightshift.artifacts.base import ObjectStore
    from weightshift.artifacts.signing_keys import SigningKey
    from weightshift.client import ReleaseClient
    from weightshift.mesh.open_mesh import OpenMesh
    from weightshift.registry.client import RegistryClient
    from weightshift.report.collect import HistoryReader
    from weightshift.report.prometheus import PrometheusHistory


class Connections:
    """Opens what a command talks to.

    Libraries are imported only when they are needed: no command waits for those of another.
    """

    def registry(self, arguments: argparse.Namespace) -> "RegistryClient":
        """Return a client of the registry's HTTP service; an async context manager."""
        from weightshift.registry.client import RegistryClient  # noqa: PLC0415

        settings = RegistrySettings().model_copy(update=_given(url=arguments.registry_url))
        return RegistryClient(
            url=settings.url, token=settings.token.get_secret_value(), timeout=settings.timeout
        )

    def registry_dsn(self) -> str:
        """Return the database's connection string. Raises `InvalidInput` when it is not set."""
        dsn = RegistrySettings().dsn.get_secret_value()
        if not dsn:
            raise InvalidInput("WEIGHTSHIFT_REGISTRY_DSN is not set; put the connection string there.")
        return dsn

    def registry_owner_dsn(self) -> str:
        """Return the owner's connection string. Raises `InvalidInput` when it is not set."""
        from weightshift.registry.settings import MigrationSettings  # noqa: PLC0415

        return MigrationSettings().required_owner_dsn()

    async def releases(self, arguments: argparse.Namespace) -> "ReleaseClient":
        """Connect to Temporal. Raises `TemporalUnreachable`."""
        from weightshift.client import ReleaseClient  # noqa: PLC0415

        given = _given(address=arguments.temporal_address, namespace=arguments.temporal_namespace)
        return await ReleaseClient.connect(settings=TemporalSettings().model_copy(update=given))

    def mesh(self) -> "OpenMesh":
        """Return the mesh that WEIGHTSHIFT_MESH_* names; a token comes from there only."""
        from weightshift.mesh.open_mesh import open_mesh  # noqa: PLC0415

        return open_mesh(MeshSettings())

    def history(self, arguments: argparse.Namespace) -> "HistoryReader":
        """Return a reader of what Prometheus measured."""
        return self.prometheus(arguments)

    def prometheus(self, arguments: argparse.Namespace) -> "PrometheusHistory":
        """Return a client of Prometheus."""
        from weightshift.report.prometheus import PrometheusHistory  # noqa: PLC0415

        given = _given(prometheus_url=arguments.prometheus_url)
        return PrometheusHistory(settings=MetricsSettings().model_copy(update=given))

    def signing_key(self, arguments: argparse.Namespace) -> "SigningKey":
        """Return the key to sign artifacts with. Raises `InvalidInput` when there is none."""
        from weightshift.artifacts.configured_keys import artifact_signing_key  # noqa: PLC0415

        given = _given(key_file=arguments.signing_key_file)
        return artifact_signing_key(SigningSettings().model_copy(update=given))

    def store(self, arguments: argparse.Namespace) -> "ObjectStore":
        """Open the object store that artifacts are kept in."""
        from weightshift.artifacts.open_store import open_store  # noqa: PLC0415

        given = _given(url=arguments.store_url, endpoint=arguments.store_endpoint)
        return open_store(StoreSettings().model_copy(update=given))


def _given(**values: str | Path | None) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Context:
    """The surroundings of one command."""

    arguments: argparse.Namespace
    output: Output
    connections: Connections

    @property
    def service(self) -> Service:
        """The model and environment the command is about."""
        return Service(model=self.arguments.model, environment=self.arguments.environment)

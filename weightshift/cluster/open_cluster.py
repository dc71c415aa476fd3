"""From settings to the cluster they name."""

from typing import Protocol

from weightshift.cluster.base import Cluster, NoCluster
from weightshift.settings import ClusterSettings, KubernetesSettings


class OpenCluster(Cluster, Protocol):
    """A cluster with connections, which the caller closes."""

    async def aclose(self) -> None:
        """Close the connections."""


def open_cluster(settings: ClusterSettings) -> OpenCluster:
    """Return the adapter that the settings name; the caller closes it."""
    if settings.adapter == "none":
        return NoCluster()
    # The Kubernetes client is an extra, and takes half a second to import.
    from weightshift.cluster.client import KubernetesClient  # noqa: PLC0415
    from weightshift.cluster.kubernetes_cluster import KubernetesCluster  # noqa: PLC0415

    return KubernetesCluster(client=KubernetesClient(settings=KubernetesSettings()), settings=settings)

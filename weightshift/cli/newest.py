"""The newest release as it is: also one that was refused at admission, or terminated, and can say no more."""

from typing import TYPE_CHECKING

from weightshift.cli.release_view import ended_otherwise
from weightshift.contracts.identity import Service
from weightshift.contracts.release import ReleasePhase, ReleaseStatus

if TYPE_CHECKING:
    from weightshift.client import ReleaseClient


async def newest_status(client: "ReleaseClient", service: Service) -> ReleaseStatus:
    """Return where the newest release of a service is, or how it ended. Raises `UnknownService`."""
    found = await client.status(service)
    if found.phase is not ReleasePhase.DONE and (problem := await client.refusal(service)):
        return ended_otherwise(found, problem)
    return found

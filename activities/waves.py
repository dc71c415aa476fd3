"""The activities that let instances swap in waves, and stop them."""

from temporalio import activity

from activities.evidence import record_evidence
from activities.failures import application_errors
from activities.options import GRANT_WAVE, REVOKE_WAVES
from weightshift.contracts.commands import WaveCommand
from weightshift.contracts.wave import WaveGrant, WaveRevocation
from weightshift.registry.base import Registry


class WaveActivities:
    """Grants and revokes, fenced; each repeat returns the first result."""

    def __init__(self, *, registry: Registry) -> None:
        self._registry = registry

    @activity.defn(name=GRANT_WAVE.name)
    async def grant(self, command: WaveCommand) -> WaveGrant:
        """Let some instances swap to a revision."""
        with application_errors():
            await record_evidence(self._registry, command.evidence)
            return await self._registry.grant_wave(command.request)

    @activity.defn(name=REVOKE_WAVES.name)
    async def revoke(self, revocation: WaveRevocation) -> None:
        """End every grant of a service; only a newer command may stop it."""
        with application_errors(insist=True):
            await self._registry.revoke_waves(revocation)

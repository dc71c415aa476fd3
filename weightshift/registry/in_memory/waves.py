"""The wave grants."""

from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.wave import WaveGrant, WaveRequest, WaveRevocation
from weightshift.registry import wave_rules as rules
from weightshift.registry.in_memory.state import MemoryState

_NO_FENCE = Fence(epoch=0, sequence=0)


class MemoryWaves(MemoryState):
    """Grants and revokes waves."""

    async def grant_wave(self, request: WaveRequest) -> WaveGrant:
        """Let some instances swap to a revision; a repeat returns the first result.

        Raises `StaleFence`, `OperationConflict`.
        """
        self._check_available()
        service = request.service
        if first := self._find(service.environment, request.operation_id):
            self._note_repeat(service, request.fence, self._wave_fences.get(service))
            return rules.repeated_grant(request, first)
        self._check_fence(request)
        grant = rules.granted(request, now=self._clock())
        self._append(rules.grant_entry(request, grant))
        self._wave_fences[service] = request.fence
        self._grants.setdefault(service, []).append(grant)
        return grant

    async def revoke_waves(self, revocation: WaveRevocation) -> None:
        """End every grant of a service; a repeat is a no-op. Raises `StaleFence`, `OperationConflict`."""
        self._check_available()
        service = revocation.service
        if first := self._find(service.environment, revocation.operation_id):
            self._note_repeat(service, revocation.fence, self._wave_fences.get(service))
            rules.check_repeat(revocation, first)
            return
        self._check_fence(revocation)
        self._append(rules.revocation_entry(revocation))
        self._wave_fences[service] = revocation.fence
        self._grants.pop(service, None)

    async def wave_grants(self, service: Service) -> tuple[WaveGrant, ...]:
        """Read the grants that are in force now, oldest first."""
        self._check_available()
        now, last_epoch = self._clock(), self._last_epoch.get(service, 0)
        return tuple(
            grant
            for grant in self._grants.get(service, ())
            if grant.expires_at > now and grant.fence.epoch >= last_epoch
        )

    def _check_fence(self, command: WaveRequest | WaveRevocation) -> None:
        with self._counting(command.service):
            rules.check_wave_fence(
                command,
                newest=self._wave_fences.get(command.service, _NO_FENCE),
                last_epoch=self._last_epoch.get(command.service, 0),
            )

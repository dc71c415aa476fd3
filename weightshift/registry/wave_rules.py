"""What the registry decides about waves. Pure; shared by every store."""

from datetime import datetime

from weightshift.contracts.evidence import AuditRow
from weightshift.contracts.identity import Fence
from weightshift.contracts.wave import WaveGrant, WaveRequest, WaveRevocation
from weightshift.errors import OperationConflict, StaleFence
from weightshift.registry.chain import Entry


def check_wave_fence(command: WaveRequest | WaveRevocation, *, newest: Fence, last_epoch: int) -> None:
    """Refuse a command that a newer one, or a newer release, has overtaken. Raises `StaleFence`."""
    limit = max(newest, Fence(epoch=last_epoch, sequence=0))
    if command.fence < limit or command.fence == newest:
        raise StaleFence(
            f"Fence {command.fence} is not newer than {limit} on the waves of {command.service}; "
            "nothing was changed."
        )


def granted(request: WaveRequest, *, now: datetime) -> WaveGrant:
    """Return the grant a request leads to; `now` is by the registry's clock."""
    return WaveGrant(
        service=request.service,
        revision=request.revision,
        instance_ids=request.instance_ids,
        fence=request.fence,
        expires_at=now + request.lifetime,
    )


def check_repeat(command: WaveRequest | WaveRevocation, recorded: AuditRow) -> None:
    """Raise `OperationConflict` when the operation id was used for a different command."""
    if recorded.data.get("command") != command.model_dump(mode="json"):
        raise OperationConflict(
            f"Operation {command.operation_id} was already used for something else; use a new id."
        )


def repeated_grant(request: WaveRequest, recorded: AuditRow) -> WaveGrant:
    """Return the first result of a grant. Raises `OperationConflict`."""
    check_repeat(request, recorded)
    return WaveGrant.model_validate(recorded.data["grant"])


def grant_entry(request: WaveRequest, grant: WaveGrant) -> Entry:
    """Return the audit entry of a grant, from which a repeat is answered."""
    return Entry(
        service=request.service,
        operation_id=request.operation_id,
        release_id=request.release_id,
        step="grant-wave",
        operator=request.operator,
        summary=f"{len(request.instance_ids)} instances may swap to revision {request.revision}",
        data={"command": request.model_dump(mode="json"), "grant": grant.model_dump(mode="json")},
    )


def revocation_entry(revocation: WaveRevocation) -> Entry:
    """Return the audit entry of a revocation."""
    return Entry(
        service=revocation.service,
        operation_id=revocation.operation_id,
        release_id=revocation.release_id,
        step="revoke-waves",
        operator=revocation.operator,
        summary=revocation.reason or "every wave grant revoked",
        data={"command": revocation.model_dump(mode="json")},
    )

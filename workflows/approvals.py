"""The human gates of a release: which people approved, and what still waits for whom. Pure.

An approval counts once, for the first gate that is still closed when it arrives. Whoever asked for the
release counts as one of the people, but is never enough alone unless the registry's rules say so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from weightshift.contracts.approval import CheckedApproval


@dataclass
class Gate:
    """What must be approved before one weight's traffic is written, and who has."""

    weight: int
    required: int
    approvers: list[str] = field(default_factory=list)


class ApprovalGates:
    """Every gate of one release, in the order in which traffic meets them."""

    def __init__(self, required: Sequence[tuple[int, int]], *, operator: str) -> None:
        """Take (weight, people who must approve) per stage; `operator` is who asked for the release."""
        self._gates = [Gate(weight, people) for weight, people in required if people]
        self._operator = operator
        self._operator_may_approve = False
        self._counted: set[str] = set()

    def is_open(self, weight: int) -> bool:
        """Whether traffic may go to this weight."""
        return all(not self._missing(gate) for gate in self._gates if gate.weight == weight)

    @property
    def next_closed(self) -> int | None:
        """The weight of the first gate that waits for people; None when none does."""
        gate = self._first_closed()
        return gate.weight if gate else None

    def refusal(self, approval: CheckedApproval) -> str | None:
        """Return why an approval cannot be counted, or None."""
        gate = self._first_closed()
        if approval.approval_id in self._counted:
            return f"approval {approval.approval_id} was counted before; give a new one"
        if gate is None:
            return "no approval is waited for"
        if approval.operator in gate.approvers:
            return f"{approval.operator} has approved {gate.weight} % already; another person must"
        return None

    def count(self, approval: CheckedApproval) -> str:
        """Count an approval that nothing speaks against; returns what it means in one line."""
        gate = self._first_closed()
        if gate is None:
            raise ValueError("no gate is closed")
        self._counted.add(approval.approval_id)
        self._operator_may_approve = approval.operator_may_approve
        gate.approvers.append(approval.operator)
        because = f" ({approval.reason})" if approval.reason else ""
        return (
            f"{approval.operator} approved {gate.weight} %{because}, "
            f"{len(gate.approvers)} of {gate.required} people"
        )

    def waiting_for(self, weight: int) -> str:
        """Return how many approvals a weight still waits for, in words."""
        missing = sum(self._missing(gate) for gate in self._gates if gate.weight == weight)
        return f"{missing} approval{'' if missing == 1 else 's'}"

    def _first_closed(self) -> Gate | None:
        return next((gate for gate in self._gates if self._missing(gate)), None)

    def _missing(self, gate: Gate) -> int:
        alone = gate.approvers == [self._operator] and not self._operator_may_approve
        return max(gate.required - len(gate.approvers), int(alone))

"""Which approvals open which gate."""

from weightshift.contracts.approval import CheckedApproval
from weightshift.contracts.plan import Plan
from workflows.approvals import ApprovalGates


def approval(number: int, operator: str, *, alone: bool = False) -> CheckedApproval:
    return CheckedApproval(approval_id=f"A{number}", operator=operator, operator_may_approve=alone)


def gates(*required: tuple[int, int]) -> ApprovalGates:
    return ApprovalGates(required, operator="ci")


def test_a_plan_says_who_must_approve_what() -> None:
    plan = Plan.model_validate({"approvals": 2, "stages": [{"weight": 5, "approvals": 1}, 50, 100]})
    assert plan.required_approvals() == ((5, 2), (50, 0), (100, 0))
    strict = Plan.model_validate({"approvals": 1, "stages": [{"weight": 5, "approvals": 3}, 100]})
    assert strict.required_approvals() == ((5, 3), (100, 0))


def test_without_requirements_every_gate_is_open() -> None:
    none = gates((5, 0), (100, 0))
    assert none.is_open(5)
    assert none.next_closed is None
    assert none.refusal(approval(1, "ada")) == "no approval is waited for"


def test_each_approval_opens_the_first_gate_that_is_closed() -> None:
    two = gates((5, 1), (50, 0), (100, 2))
    two.count(approval(1, "ada"))
    assert (two.is_open(5), two.is_open(50), two.is_open(100), two.next_closed) == (True, True, False, 100)
    assert two.waiting_for(100) == "2 approvals"
    assert two.refusal(approval(2, "ada")) is None, "the same person may approve the next gate"
    two.count(approval(2, "ada"))
    assert two.refusal(approval(3, "ada")) == "ada has approved 100 % already; another person must"
    two.count(approval(4, "bob"))
    assert two.is_open(100)


def test_an_approval_counts_once() -> None:
    two = gates((5, 1), (100, 1))
    two.count(approval(1, "ada"))
    assert "counted before" in (two.refusal(approval(1, "ada")) or "")


def test_whoever_asked_counts_but_never_alone_unless_the_rules_say_so() -> None:
    one = gates((5, 1))
    one.count(approval(1, "ci"))
    assert (one.is_open(5), one.waiting_for(5)) == (False, "1 approval")
    one.count(approval(2, "ada"))
    assert one.is_open(5)
    pair = gates((5, 2))
    pair.count(approval(1, "ci"))
    pair.count(approval(2, "ada"))
    assert pair.is_open(5)
    trusted = gates((5, 1))
    trusted.count(approval(1, "ci", alone=True))
    assert trusted.is_open(5)

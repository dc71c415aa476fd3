"""What the judge of a stage said last, read from its activity's heartbeat: that costs a history no event."""

from temporalio.client import Client, WorkflowExecutionDescription

from weightshift.contracts.commands import JUDGE_ACTIVITY


async def judging(client: Client, description: WorkflowExecutionDescription) -> str:
    """Return the latest word of the judge at work; empty while none is, or it has said nothing yet."""
    for pending in description.raw_description.pending_activities:
        if pending.activity_type.name == JUDGE_ACTIVITY and (payloads := pending.heartbeat_details.payloads):
            said = await client.data_converter.decode(payloads[:1])
            return str(said[0])
    return ""

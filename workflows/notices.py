"""Telling people about a release, beside what it does: nothing here is ever waited for until the end."""

import asyncio
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.options import NOTIFY
    from weightshift.contracts.notification import Notification, NotificationEvent
    from workflows.context import ReleaseContext

LAST_NOTICES = timedelta(seconds=5)
"""How long an ended release stays for notices that are still on their way."""


def notify(context: ReleaseContext, event: NotificationEvent, text: str) -> None:
    """Start a notice to every channel of the plan, and go on at once."""
    status = context.status()
    for channel in context.request.plan.notify:
        sequence = len(context.notices) + 1
        notice = Notification(
            notification_id=f"{context.request.release_id}:notice:{sequence}",
            sequence=sequence,
            channel=channel,
            event=event,
            at=workflow.now(),
            release_id=context.request.release_id,
            service=context.request.service,
            artifact_id=context.request.artifact_id,
            operator=context.request.operator,
            text=text,
            split=context.split,
            outcome=context.outcome,
            way_back=status.way_back,
        )
        context.notices.append(context.start(NOTIFY, notice, summary=f"notify {channel}: {event}"))


async def settle_notices(context: ReleaseContext) -> None:
    """Give the last notices a moment; a receiver that is away does not keep the release from ending."""
    try:
        if context.notices:
            await workflow.wait_condition(
                lambda: all(notice.done() for notice in context.notices),
                timeout=LAST_NOTICES,
                timeout_summary="last notices",
            )
    except (TimeoutError, asyncio.CancelledError):
        for notice in context.notices:
            notice.cancel()

"""`weightshift local traffic`: checked requests to a local stack, so that its releases can be judged."""

import asyncio
import signal
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightshift.cli.context import Context
from weightshift.cli.options import Option
from weightshift.errors import InvalidInput, LocalStackError

if TYPE_CHECKING:
    from weightshift.local.traffic import Traffic
    from weightshift.local.traffic_check import Expectations

_REPORT_SECONDS = 5.0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("it must be a number above zero")
    return value


OPTIONS = (
    Option(
        ("--expectations",),
        "WEIGHTSHIFT_TRAFFIC_EXPECTATIONS",
        "JSON file of requests and the answers of each model",
        default=Path("models/expectations.json"),
        parse=Path,
    ),
    Option(("--rate",), "WEIGHTSHIFT_TRAFFIC_RATE", "requests per second", default=60.0, parse=_positive),
    Option(("--seconds",), "WEIGHTSHIFT_TRAFFIC_SECONDS", "longest run", default=3600.0, parse=_positive),
)


async def traffic(context: Context) -> int:
    """Send requests and check every answer against the model it names; 1 when one failed or was wrong."""
    from weightshift.local import control  # noqa: PLC0415 - heavy, and only this group needs it
    from weightshift.local.traffic import Destination, Traffic  # noqa: PLC0415

    arguments = context.arguments
    expectations = _read(arguments.expectations)
    stack = control.status(arguments.dir)
    if stack.addresses is None:
        raise LocalStackError(
            f"no local stack runs in {arguments.dir}; start one with `weightshift local up`, or name its "
            "directory with --dir"
        )
    sender = Traffic(
        destination=Destination.parse(f"{stack.addresses.envoy}/predict"),
        expectations=expectations,
        rate=arguments.rate,
    )
    sender.released.update(expectations.answers)
    context.output.line(f"{arguments.rate:g} requests/s to {stack.addresses.envoy}/predict; Ctrl-C ends it")
    await _send(context, sender)
    figures = sender.tally.figures()
    context.output.result(figures, *figures["failures"], _line(figures))
    return 1 if figures["failed"] or figures["misrouted"] else 0


def _read(path: Path) -> "Expectations":
    from weightshift.local.traffic_check import Expectations  # noqa: PLC0415

    try:
        return Expectations.read(path)
    except FileNotFoundError as error:
        raise InvalidInput(
            f"expectations: there is no {path}; make it with `python -m weightshift.local.demo_models models`"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"expectations: {path} does not hold bodies and answers ({error!r})") from error


async def _send(context: Context, sender: "Traffic") -> None:
    """Send until the time is over or somebody interrupts; what is in flight is answered either way."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, sender.stop)
    reports = asyncio.create_task(_report(context, sender))
    try:
        await sender.run(context.arguments.seconds)
    finally:
        reports.cancel()


async def _report(context: Context, sender: "Traffic") -> None:
    while True:
        await asyncio.sleep(_REPORT_SECONDS)
        context.output.line(_line(sender.tally.figures()))


def _line(figures: dict[str, Any]) -> str:
    answered = ", ".join(f"{name} {arm['requests']:,}" for name, arm in figures["artifacts"].items())
    return (
        f"{datetime.now().astimezone():%H:%M:%S}  {figures['requests']:,} requests, "
        f"{figures['failed']} failed, {figures['misrouted']} answered wrongly; "
        f"answered by {answered or 'nobody'}"
    )

"""A report as one HTML page that needs nothing else: no script, no font, no address is loaded."""

from collections.abc import Mapping
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from weightshift.contracts.verdict import GateResult, GateVerdict
from weightshift.report.charts import draw
from weightshift.report.document import ReleaseReport

_TEMPLATE = "page.html"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def render(report: ReleaseReport) -> str:
    """Return the page. Every text is escaped; the charts' texts are escaped by whoever drew them."""
    environment = Environment(
        loader=PackageLoader("weightshift.report", package_path=""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "day": _day,
        "clock": _clock,
        "duration": _duration,
        "bytes": _bytes,
        "seconds": _seconds,
        "margin": _margin,
    }
    charts = Markup(draw(report))  # noqa: S704  (our own drawing, not a text of anybody's)
    return environment.get_template(_TEMPLATE).render(report=report, charts=charts)


def _day(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%H:%M:%S.%f}"[:-5]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


def _bytes(number: int | None) -> str:
    if not number:
        return ""
    amount, unit = float(number), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def _seconds(by_step: Mapping[str, float]) -> str:
    return ", ".join(f"{step} {seconds:.2f}" for step, seconds in by_step.items())


def _margin(gate: GateResult, kind: str) -> str:
    """Return a gate's evidence and its boundary; a gate that did not apply has none."""
    gathered, boundary = gate.figures.get(f"log_{kind}"), gate.figures.get(f"log_{kind}_boundary")
    if gathered is None or boundary is None or gate.verdict is GateVerdict.NOT_APPLICABLE:
        return ""
    return f"{gathered:.2f} of {boundary:.2f}"

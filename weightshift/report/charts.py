"""A release's curves over time, as one SVG drawn by matplotlib."""

import io
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from weightshift.contracts.curve import ArmCurve
from weightshift.contracts.identity import Cohort
from weightshift.contracts.release import ReleasePhase
from weightshift.report.document import GateLimit, ReleaseReport, ReportedStep, StageReport

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

Values = Sequence[float | None]

_COLOURS = {Cohort.CANARY: "#c75b12", Cohort.STABLE: "#2f6690"}
_HARM, _HEALTH, _GRID, _TEXT = "#b3261e", "#2e7d32", "#d9dde2", "#333a42"
_GATE_COLOURS = ("#6a3d9a", "#1b9e9e", "#a6761d", "#666666", "#d95f98", "#66a61e")
_WIDTH, _PANEL_HEIGHT = 10.4, 2.15
_LEAST_ERROR_AXIS = 0.5
_STYLE: "dict[RcKeyType, Any]" = {
    "svg.fonttype": "none",
    # The same release gives the same picture, byte for byte.
    "svg.hashsalt": "weightshift",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "axes.edgecolor": "#9aa3ad",
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    # A gate's name is a text, whatever dollar signs it holds.
    "text.parse_math": False,
}


def draw(report: ReleaseReport) -> str:
    """Return the charts as one `<svg>` element: split, error rate, p99, and evidence against boundaries."""
    panels = _panels(report)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, _PANEL_HEIGHT * len(panels) + 0.3), layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for panel, place in zip(panels, axes, strict=True):
            _prepare(place, report)
            panel(place, report)
        _time_axis(axes[-1], report)
        content = io.StringIO()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None, "Format": None})
    svg = content.getvalue()
    return svg[svg.index("<svg") :]


def _panels(report: ReleaseReport) -> list[Callable[[Axes, ReleaseReport], None]]:
    judged = any(stage.curve.until for stage in report.stages)
    return [_draw_split, _draw_errors, _draw_latency, *([_draw_harm, _draw_health] if judged else [])]


def _prepare(axes: Axes, report: ReleaseReport) -> None:
    axes.grid(visible=True, color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for number, stage in enumerate(report.stages):
        colour = "#f4f1ea" if number % 2 == 0 else "#ebe7dd"
        axes.axvspan(_day(stage.started_at), _day(stage.ended_at), color=colour, linewidth=0, zorder=0)
    for step in _turned_back(report):
        axes.axvline(_day(step.at), color=_HARM, linewidth=1.3)


def _turned_back(report: ReleaseReport) -> list[ReportedStep]:
    """Return the step that began the way back, if there is one."""
    return [step for step in report.steps if step.step == ReleasePhase.ROLLING_BACK][:1]


def _time_axis(axes: Axes, report: ReleaseReport) -> None:
    axes.set_xlim(*_span(report))
    locator = AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlabel("time (UTC)")


def _span(report: ReleaseReport) -> tuple[float, float]:
    end = report.started_at + timedelta(seconds=max(report.duration_seconds, 1.0))
    return _day(report.started_at), _day(end)


# --- traffic ----------------------------------------------------------------------------------------


def _draw_split(axes: Axes, report: ReleaseReport) -> None:
    start, end = _span(report)
    at = [start, *(_day(change.at) for change in report.splits), end]
    canary = [0, *(change.split.canary for change in report.splits)]
    canary.append(canary[-1])
    axes.fill_between(at, canary, step="post", color="#e08a4f", linewidth=0, label="canary")
    axes.fill_between(at, canary, [100] * len(at), step="post", color="#c9d8e4", linewidth=0, label="stable")
    for stage in report.stages:
        middle = (_day(stage.started_at) + _day(stage.ended_at)) / 2
        axes.annotate(_stage_label(stage, report), (middle, 93), ha="center", va="top")
    for step in _turned_back(report):
        axes.annotate("turned back", (_day(step.at), 60), ha="right", color=_HARM, rotation=90)
    axes.set_ylim(0, 100)
    axes.set_ylabel("traffic, %")
    _title(axes, "Traffic as the mesh was read back")
    _legend(axes)


def _stage_label(stage: StageReport, report: ReleaseReport) -> str:
    """Return the canary's share, and which part of it is copied to stable for comparison."""
    mirrored = max(
        (one.split.mirrored for one in report.splits if one.split.canary == stage.weight), default=0
    )
    return f"{stage.weight} %\n{mirrored} % mirrored" if mirrored else f"{stage.weight} %"


# --- error rate and latency -------------------------------------------------------------------------


def _draw_errors(axes: Axes, report: ReleaseReport) -> None:
    if report.measured is not None:
        for cohort in Cohort:
            arm = report.measured.canary if cohort is Cohort.CANARY else report.measured.stable
            _draw_measured(axes, cohort, report.measured.at, _scaled(arm.error_rate, 100))
    for stage in report.stages:
        for cohort in Cohort:
            _draw_judged(axes, cohort, stage, _scaled(_error_rate(_arm(stage, cohort)), 100))
        for limit in stage.error_limits:
            _draw_limit(axes, stage, limit, _scaled(_error_rate(stage.curve.stable), 100), 100)
    top = max(axes.get_ylim()[1], _LEAST_ERROR_AXIS)
    axes.set_ylim(-0.03 * top, top)
    axes.set_ylabel("failed requests, %")
    _title(axes, "Error rate")
    _legend(axes)


def _draw_latency(axes: Axes, report: ReleaseReport) -> None:
    if report.measured is not None:
        for cohort in Cohort:
            arm = report.measured.canary if cohort is Cohort.CANARY else report.measured.stable
            _draw_measured(axes, cohort, report.measured.at, _scaled(arm.p99, 1000))
    for stage in report.stages:
        for cohort in Cohort:
            _draw_judged(axes, cohort, stage, _scaled(_arm(stage, cohort).p99, 1000))
        for limit in stage.latency_limits:
            no_margin = limit.model_copy(update={"margin": 0.0})
            _draw_limit(axes, stage, no_margin, _scaled(stage.curve.stable.p99, 1000), 1000)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("p99, ms")
    _title(axes, "Latency, 99th percentile")
    _legend(axes)


def _arm(stage: StageReport, cohort: Cohort) -> ArmCurve:
    return stage.curve.canary if cohort is Cohort.CANARY else stage.curve.stable


def _error_rate(arm: ArmCurve) -> Values:
    return [
        errors / requests if requests else None
        for errors, requests in zip(arm.errors, arm.requests, strict=True)
    ]


def _scaled(values: Values, factor: float) -> Values:
    return [None if value is None else value * factor for value in values]


def _draw_measured(axes: Axes, cohort: Cohort, at: Sequence[float], values: Values) -> None:
    if any(value is not None for value in values):
        label = f"{cohort}, Prometheus"
        axes.plot(_moments(at), _gaps(values), color=_COLOURS[cohort], linewidth=1.0, alpha=0.4, label=label)


def _draw_judged(axes: Axes, cohort: Cohort, stage: StageReport, values: Values) -> None:
    if any(value is not None for value in values):
        axes.plot(
            _moments(stage.curve.until),
            _gaps(values),
            color=_COLOURS[cohort],
            linewidth=1.4,
            marker="o",
            markersize=2.6,
            label=f"{cohort}, as judged",
        )


def _draw_limit(axes: Axes, stage: StageReport, limit: GateLimit, stable: Values, factor: float) -> None:
    """Draw what the canary may not exceed: a fixed line, or one that follows stable."""
    if limit.maximum is not None:
        values: Values = [limit.maximum * factor] * 2
        at = _ends(stage)
    elif limit.ratio is not None:
        ratio, margin = limit.ratio, limit.margin * factor
        values = [None if value is None else value * ratio + margin for value in stable]
        at = _moments(stage.curve.until)
    else:
        return
    dashes = "--" if limit.maximum is not None else ":"
    axes.plot(at, _gaps(values), color=_HARM, linewidth=1.1, linestyle=dashes, label=f"limit {limit.gate}")


# --- evidence ---------------------------------------------------------------------------------------


def _draw_harm(axes: Axes, report: ReleaseReport) -> None:
    _draw_evidence(axes, report, "log_harm", _HARM, "rolls back")
    _title(axes, "Evidence of harm: the release turns back above the line")


def _draw_health(axes: Axes, report: ReleaseReport) -> None:
    _draw_evidence(axes, report, "log_health", _HEALTH, "passes")
    _title(axes, "Evidence of health: a gate passes only above the line")


def _draw_evidence(axes: Axes, report: ReleaseReport, kind: str, colour: str, effect: str) -> None:
    names = {name: number for number, name in enumerate(_gate_names(report))}
    for stage in report.stages:
        columns: dict[str, tuple[float, ...]] = getattr(stage.curve, kind)
        for name, values in columns.items():
            gate = _GATE_COLOURS[names[name] % len(_GATE_COLOURS)]
            axes.plot(_moments(stage.curve.until), _gaps(values), color=gate, linewidth=1.3, label=name)
        name = f"{kind}_boundary"
        for boundary in {gate.figures[name] for gate in stage.gates if name in gate.figures}:
            axes.plot(_ends(stage), [boundary] * 2, color=colour, linewidth=1.1, linestyle="--", label=effect)
    axes.set_ylabel("ln evidence")
    # Evidence may fall without end; what matters is how it stands to the boundary.
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -12.0), min(max(high, 1.0), 40.0))
    _legend(axes)


def _gate_names(report: ReleaseReport) -> list[str]:
    return list(dict.fromkeys(name for stage in report.stages for name in stage.curve.log_harm))


# --- small things -----------------------------------------------------------------------------------


def _day(moment: datetime) -> float:
    """Return a moment as the time axis counts it."""
    return float(date2num(moment))


def _moments(at: Sequence[float]) -> list[float]:
    return [_day(datetime.fromtimestamp(moment, UTC)) for moment in at]


def _ends(stage: StageReport) -> list[float]:
    return [_day(stage.started_at), _day(stage.ended_at)]


def _gaps(values: Values) -> list[float]:
    """Return the values with NaN, at which a line is broken, where there is none."""
    return [float("nan") if value is None else value for value in values]


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10.0, fontweight="bold")


def _legend(axes: Axes) -> None:
    """Name every kind of line once, beside the panel."""
    found, labels = axes.get_legend_handles_labels()
    named: dict[str, Artist] = dict(zip(labels, found, strict=True))
    if named:
        axes.legend(
            list(named.values()),
            list(named),
            loc="upper left",
            bbox_to_anchor=(1.005, 1.0),
            frameon=False,
            fontsize=8.0,
            borderaxespad=0.0,
        )
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))

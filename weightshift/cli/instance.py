"""`weightshift instance`: what is actually loaded."""

from weightshift.cli.context import Context
from weightshift.cli.options import ENVIRONMENT, REGISTRY, Commands, add_command, add_group
from weightshift.cli.output import table
from weightshift.contracts.instance import CandidateProgress, InstanceReport, InstanceState

_GIBIBYTE = 1 << 30


def add_commands(groups: Commands) -> None:
    """Declare the group."""
    commands = add_group(groups, "instance", "what is actually loaded")
    add_command(
        commands,
        "list",
        show_all,
        "list a model's instances",
        positionals=["model"],
        options=(ENVIRONMENT, *REGISTRY),
    )


async def show_all(context: Context) -> int:
    """List a model's instances."""
    async with context.connections.registry(context.arguments) as registry:
        states = await registry.instances(context.service)
    columns = ("INSTANCE", "COHORT", "STATE", "SERVES", "REVISION", "CANDIDATE", "MEMORY", "AGE")
    empty = f"no instance of {context.service} reports"
    context.output.result({"instances": states}, table(columns, [_row(item) for item in states], empty=empty))
    return 0


def _row(state: InstanceState) -> tuple[object, ...]:
    report = state.report
    actual = report.actual
    return (
        report.instance_id,
        report.cohort,
        _condition(state) + (", unsigned allowed" if report.insecure_unsigned else ""),
        actual and actual.artifact_id,
        actual and actual.revision,
        report.candidate and _progress(report.candidate),
        _memory(report),
        f"{state.age_seconds:.1f} s",
    )


def _memory(report: InstanceReport) -> str | None:
    if report.memory_used_bytes is None or report.memory_limit_bytes is None:
        return None
    return f"{report.memory_used_bytes / _GIBIBYTE:.1f} of {report.memory_limit_bytes / _GIBIBYTE:.1f} GiB"


def _condition(state: InstanceState) -> str:
    if state.lost:
        return "lost"
    if state.report.draining:
        return "draining"
    return "ready" if state.report.ready else "not ready"


def _progress(candidate: CandidateProgress) -> str:
    text = f"{candidate.artifact_id} {candidate.phase}"
    if candidate.error is not None:
        return f"{text}: {candidate.error.message}"
    if candidate.last_error is not None:
        return f"{text}, attempt {candidate.attempt}, after: {candidate.last_error.message}"
    return text

"""`weightshift registry`: the care of its database."""

from weightshift.cli.context import Context
from weightshift.cli.options import (
    ENVIRONMENT,
    OPERATOR,
    REASON,
    Commands,
    Option,
    add_command,
    add_group,
    operator_of,
)
from weightshift.cli.output import table

_ROLE = Option(
    ("--application-role",),
    "WEIGHTSHIFT_REGISTRY_APPLICATION_ROLE",
    "role that the registry's processes log in as",
    default="weightshift_application",
)
_AT_LEAST = (
    Option(
        ("--revision-at-least",),
        "WEIGHTSHIFT_REVISION_AT_LEAST",
        "highest revision that runtimes or an audit export show",
        default=0,
        parse=int,
    ),
    Option(
        ("--epoch-at-least",),
        "WEIGHTSHIFT_EPOCH_AT_LEAST",
        "highest epoch that the mesh or an audit export shows",
        default=0,
        parse=int,
    ),
)


def add_commands(groups: Commands) -> None:
    """Declare the group."""
    commands = add_group(groups, "registry", "the care of the registry's database")
    add_command(
        commands,
        "migrate",
        migrate,
        "bring the database to this build's schema; needs WEIGHTSHIFT_REGISTRY_OWNER_DSN",
        options=(_ROLE,),
    )
    add_command(
        commands,
        "recover",
        recover,
        "after a restore, raise the counters above all that was ever seen; needs WEIGHTSHIFT_REGISTRY_DSN",
        options=(ENVIRONMENT, *_AT_LEAST, OPERATOR, REASON),
    )


async def migrate(context: Context) -> int:
    """Apply the missing migrations."""
    from weightshift.registry.migrate import migrate as apply  # noqa: PLC0415

    version = await apply(
        owner_dsn=context.connections.registry_owner_dsn(),
        application_role=context.arguments.application_role,
    )
    context.output.result({"version": version}, f"the registry's database is at schema version {version}")
    return 0


async def recover(context: Context) -> int:
    """Raise an environment's revision and epoch counters."""
    from weightshift.registry.recover import recover as raise_counters  # noqa: PLC0415

    arguments = context.arguments
    services = await raise_counters(
        dsn=context.connections.registry_dsn(),
        environment=arguments.environment,
        revision_at_least=arguments.revision_at_least,
        epoch_at_least=arguments.epoch_at_least,
        operator=operator_of(context),
        reason=arguments.reason,
    )
    columns = ("MODEL", "REVISION WAS", "IS", "EPOCH WAS", "IS")
    rows = [
        (one.service.model, one.revision_before, one.revision, one.epoch_before, one.epoch)
        for one in services
    ]
    empty = f"the registry knows no service in {arguments.environment}"
    context.output.result({"services": services}, table(columns, rows, empty=empty))
    return 0

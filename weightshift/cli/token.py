"""`weightshift token`: who may talk to the registry. Works on its database, not through its service."""

from weightshift.cli.context import Context
from weightshift.cli.options import Commands, Option, add_command, add_group
from weightshift.cli.output import table

_ROLES = ("runtime", "operator", "metrics")
_ISSUE = (
    Option(("--role",), "WEIGHTSHIFT_TOKEN_ROLE", "what it is for", required=True, choices=_ROLES),
    Option(("--subject",), "WEIGHTSHIFT_TOKEN_SUBJECT", "who will hold it", required=True),
    Option(("--model",), "WEIGHTSHIFT_TOKEN_MODEL", "model it is bound to", default="*"),
    Option(("-e", "--environment"), "WEIGHTSHIFT_ENVIRONMENT", "environment it is bound to", default="*"),
)


def add_commands(groups: Commands) -> None:
    """Declare the group."""
    commands = add_group(groups, "token", "who may talk to the registry; needs WEIGHTSHIFT_REGISTRY_DSN")
    add_command(commands, "issue", issue, "make a token and print it, this once", options=_ISSUE)
    add_command(commands, "list", show_all, "list the tokens ever issued, by id")
    add_command(commands, "revoke", revoke, "make a token useless", positionals=["token_id"])


async def issue(context: Context) -> int:
    """Make a token; nobody can read it again."""
    from weightshift.registry.tokens import Role, issue_token, token_id  # noqa: PLC0415

    arguments = context.arguments
    token = await issue_token(
        dsn=context.connections.registry_dsn(),
        role=Role(arguments.role),
        subject=arguments.subject,
        model=arguments.model,
        environment=arguments.environment,
    )
    context.output.result({"token_id": token_id(token), "token": token}, token)
    return 0


async def show_all(context: Context) -> int:
    """List the tokens ever issued, oldest first."""
    from weightshift.registry.tokens import list_tokens  # noqa: PLC0415

    records = await list_tokens(dsn=context.connections.registry_dsn())
    columns = ("ID", "ROLE", "SUBJECT", "MODEL", "ENVIRONMENT", "CREATED", "REVOKED")
    rows = [
        (
            record.token_id,
            record.role,
            record.subject,
            record.model,
            record.environment,
            record.created_at.isoformat(timespec="seconds"),
            record.revoked_at and record.revoked_at.isoformat(timespec="seconds"),
        )
        for record in records
    ]
    context.output.result({"tokens": records}, table(columns, rows, empty="no token was ever issued"))
    return 0


async def revoke(context: Context) -> int:
    """Make a token useless from the next request on."""
    from weightshift.registry.tokens import revoke_token  # noqa: PLC0415

    token_id = context.arguments.token_id
    await revoke_token(dsn=context.connections.registry_dsn(), token_id=token_id)
    context.output.result({"token_id": token_id, "revoked": True}, f"{token_id} is revoked")
    return 0

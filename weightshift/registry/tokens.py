"""Access tokens: who may do what, for which service. Only their SHA-256 is stored."""

import hashlib
import hmac
import secrets
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from weightshift.contracts.base import Identifier, Message, Name
from weightshift.errors import InvalidInput, Unauthorised
from weightshift.registry.postgres.database import Database, lone_connection
from weightshift.registry.shared import Shared
from weightshift.registry.sql import QUERIES

EVERY = "*"
"""In an operator's token: any model, or any environment."""

CONNECT_SECONDS = 10.0
_SUBJECT: TypeAdapter[str] = TypeAdapter(Identifier)
_NAME: TypeAdapter[str] = TypeAdapter(Name)


class Role(StrEnum):
    """What a token is for."""

    RUNTIME = "runtime"
    OPERATOR = "operator"
    METRICS = "metrics"


class Grant(Message):
    """What a token allows its holder; `subject` is the name that the audit chain records."""

    role: Role
    subject: str
    model: str
    environment: str

    def check(self, *, model: str | None = None, environment: str | None = None) -> None:
        """Raise `Unauthorised` unless the grant covers the model and the environment, where given."""
        if model is not None and self.model not in (EVERY, model):
            raise Unauthorised(f"The token does not cover model {model}; use one that is bound to it.")
        if environment is not None and self.environment not in (EVERY, environment):
            raise Unauthorised(
                f"The token does not cover environment {environment}; use one that is bound to it."
            )

    def check_every_model(self) -> None:
        """Raise `Unauthorised` unless the grant covers all models."""
        if self.model != EVERY:
            raise Unauthorised(
                f"This shows every model but the token covers {self.model} only; "
                f"use one bound to model {EVERY}."
            )

    def check_every_environment(self) -> None:
        """Raise `Unauthorised` unless the grant covers all environments."""
        if self.environment != EVERY:
            raise Unauthorised(
                f"This changes every environment but the token covers {self.environment} only; "
                f"use one bound to environment {EVERY}."
            )


class TokenRecord(Grant):
    """What the registry keeps of a token, apart from its digest. `token_id` is safe to show."""

    token_id: str
    created_at: datetime
    revoked_at: datetime | None = None


class TokenStore(Protocol):
    """Looks tokens up."""

    async def grant(self, token: str) -> Grant | None:
        """Return what a token allows; None for one unknown or revoked. Raises `RegistryUnreachable`."""


class PostgresTokens:
    """The tokens in the registry's database; a revocation counts from the next request on."""

    def __init__(self, *, database: Database) -> None:
        self._database = database
        # All runtimes of a service carry one token, and come back together after every publication.
        self._shared = Shared(self._read)

    async def grant(self, token: str) -> Grant | None:
        """Return what a token allows; None for one unknown or revoked. Raises `RegistryUnreachable`."""
        return await self._shared.get(token_digest(token))

    async def _read(self, digest: str) -> Grant | None:
        async with self._database.connection() as connection:
            record = await connection.fetchrow(QUERIES["select_token"], digest)
        if record is None or not hmac.compare_digest(record["token_sha256"], digest):
            return None
        return Grant.model_validate(dict(record))


class MemoryTokens:
    """Tokens kept in memory, for tests and trials in one process."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    async def grant(self, token: str) -> Grant | None:
        """Return what a token allows; None for one unknown."""
        return self._grants.get(token_digest(token))

    def issue(self, grant: Grant) -> str:
        """Return a new token for a grant. Raises `InvalidInput`."""
        check_grant(grant)
        token = new_token()
        self._grants[token_digest(token)] = grant
        return token


def new_token() -> str:
    """Return a token of 256 random bits; the prefix lets secret scanners recognise it."""
    return f"weightshift_{secrets.token_urlsafe(32)}"


def token_digest(token: str) -> str:
    """Return what is stored and compared in place of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_id(token: str) -> str:
    """Return the name that a token is listed and revoked by."""
    return token_digest(token)[:16]


def check_grant(grant: Grant) -> None:
    """Raise `InvalidInput` for a grant nobody should hold."""
    if not _is_valid(_SUBJECT, grant.subject) or grant.subject != grant.subject.strip():
        raise InvalidInput(
            "A token's subject is one printable line of 1 to 200 characters; name the person or machine "
            "that will hold it."
        )
    for what, name in (("model", grant.model), ("environment", grant.environment)):
        if name != EVERY and not _is_valid(_NAME, name):
            raise InvalidInput(f"A token's {what} is {EVERY} or a name of [A-Za-z0-9._-]; use one.")
    if grant.role is Role.RUNTIME and EVERY in (grant.model, grant.environment):
        raise InvalidInput("A runtime token is bound to one model and one environment; name both.")
    if grant.role is Role.METRICS and (grant.model, grant.environment) != (EVERY, EVERY):
        raise InvalidInput(f"A metrics token sees every service; bind it to model and environment {EVERY}.")


def _is_valid(kind: TypeAdapter[str], value: str) -> bool:
    try:
        kind.validate_python(value)
    except ValidationError:
        return False
    return True


async def issue_token(*, dsn: str, role: Role, subject: str, model: str, environment: str) -> str:
    """Store a new token's digest and return the token, which cannot be read again.

    Raises `InvalidInput`, `RegistryUnreachable`.
    """
    grant = Grant(role=role, subject=subject, model=model, environment=environment)
    check_grant(grant)
    token = new_token()
    values = token_digest(token), role.value, subject, model, environment
    async with lone_connection(dsn=dsn, seconds=CONNECT_SECONDS) as connection:
        await connection.execute(QUERIES["insert_token"], *values)
    return token


async def list_tokens(*, dsn: str) -> tuple[TokenRecord, ...]:
    """Return every token ever issued, oldest first. Raises `RegistryUnreachable`."""
    async with lone_connection(dsn=dsn, seconds=CONNECT_SECONDS) as connection:
        records = await connection.fetch(QUERIES["select_tokens"])
    return tuple(TokenRecord.model_validate(dict(record)) for record in records)


async def revoke_token(*, dsn: str, token_id: str) -> None:
    """Make a token useless from the next request on.

    Raises `InvalidInput` when no token in force has this id, `RegistryUnreachable`.
    """
    async with lone_connection(dsn=dsn, seconds=CONNECT_SECONDS) as connection:
        revoked = await connection.fetchval(QUERIES["revoke_token"], token_id)
    if revoked is None:
        raise InvalidInput(f"No token in force has the id {token_id}; see `weightshift token list`.")

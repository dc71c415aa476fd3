"""Settings of the registry's own processes; everybody else needs `RegistrySettings` only."""

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from weightshift.contracts.approval import ApprovalPolicy
from weightshift.errors import InvalidInput


class RegistryServiceSettings(BaseSettings):
    """How the HTTP service works. Durations are seconds.

    `heartbeat` is how often its LISTEN connection proves itself alive; `mismatch_after` how long an
    instance may serve something else than what is desired; `approvals` how many people must approve an
    artifact, of whom `pusher_may_approve` lets the one who pushed it be the only one.
    """

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_REGISTRY_")

    host: str = "127.0.0.1"
    port: int = Field(default=8070, ge=0, le=65_535)
    heartbeat: float = Field(default=3.0, gt=0)
    mismatch_after: float = Field(default=300.0, gt=0)
    approvals: int = Field(default=1, ge=1, le=20)
    pusher_may_approve: bool = False

    @property
    def approval_policy(self) -> ApprovalPolicy:
        """What makes an artifact ready."""
        return ApprovalPolicy(required=self.approvals, pusher_may_approve=self.pusher_may_approve)


class MigrationSettings(BaseSettings):
    """Who owns the schema, and which role the registry's processes log in as.

    With `owner_dsn` the HTTP service migrates when it starts; without, somebody else has to before.
    """

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_REGISTRY_")

    owner_dsn: SecretStr = SecretStr("")
    application_role: str = "weightshift_application"

    def required_owner_dsn(self) -> str:
        """Return the owner's connection string. Raises `InvalidInput` when it is not set."""
        dsn = self.owner_dsn.get_secret_value()
        if not dsn:
            raise InvalidInput(
                "WEIGHTSHIFT_REGISTRY_OWNER_DSN is not set; put the owner's connection string there."
            )
        return dsn

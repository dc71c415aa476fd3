"""Settings of the registry's own processes; everybody else needs `RegistrySettings` only."""

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class RegistryServiceSettings(BaseSettings):
    """Where the HTTP service listens, and how often (seconds) its LISTEN connection proves itself alive."""

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_REGISTRY_")

    host: str = "127.0.0.1"
    port: int = Field(default=8070, ge=0, le=65_535)
    heartbeat: float = Field(default=3.0, gt=0)


class MigrationSettings(BaseSettings):
    """Who owns the schema, and which role the registry's processes log in as."""

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_REGISTRY_")

    owner_dsn: SecretStr
    application_role: str = "weightshift_application"

"""The one way in which processes connect to Temporal."""

from pathlib import Path

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import Runtime
from temporalio.service import TLSConfig

from weightshift.errors import InvalidInput
from weightshift.settings import TemporalSettings


async def connect(settings: TemporalSettings, *, runtime: Runtime | None = None) -> Client:
    """Connect as the settings say.

    Raises `InvalidInput` when a certificate cannot be read, and `RuntimeError` when Temporal does not answer.
    """
    return await Client.connect(
        settings.address,
        namespace=settings.namespace,
        data_converter=pydantic_data_converter,
        tls=tls_of(settings),
        runtime=runtime,
    )


def tls_of(settings: TemporalSettings) -> TLSConfig | bool:
    """Return how to encrypt: not at all, by the system's certificates, or by the files that are named.

    Raises `InvalidInput`.
    """
    if not settings.is_encrypted:
        return False
    if bool(settings.tls_certificate_file) != bool(settings.tls_key_file):
        raise InvalidInput(
            "WEIGHTSHIFT_TEMPORAL_TLS_CERTIFICATE_FILE and WEIGHTSHIFT_TEMPORAL_TLS_KEY_FILE go together; "
            "set both, or neither."
        )
    return TLSConfig(
        server_root_ca_cert=_content(settings.tls_authority_file, "tls_authority_file"),
        client_cert=_content(settings.tls_certificate_file, "tls_certificate_file"),
        client_private_key=_content(settings.tls_key_file, "tls_key_file"),
    )


def _content(path: Path | None, name: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"WEIGHTSHIFT_TEMPORAL_{name.upper()}: {path} cannot be read ({error.strerror}); correct it."
        ) from error

"""Clients of a Temporal behind mutual TLS: a real server, and in front of it what ends the encryption."""

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from weightshift.client import ReleaseClient
from weightshift.contracts.identity import Service
from weightshift.errors import InvalidInput, TemporalUnreachable
from weightshift.local.binaries import find_binary
from weightshift.local.ports import HOST
from weightshift.local.temporal import temporal_server
from weightshift.settings import TemporalSettings

COMPONENT = Path(__file__).parents[2] / "deploy/kubernetes/components/temporal-tls/kustomization.yaml"
NOBODY = Service(model="ranker", environment="nowhere")


@dataclass(frozen=True)
class Authority:
    """Signs certificates; writes everything into one directory."""

    directory: Path
    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, directory: Path, name: str) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        certificate = (
            draft(name, name, key).add_extension(constraint, critical=True).sign(key, hashes.SHA256())
        )
        (directory / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(directory, name, key, certificate)

    @property
    def file(self) -> Path:
        return self.directory / f"{self.name}.pem"

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return a certificate for this machine, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
        signed = (
            draft(name, self.name, key).add_extension(names, critical=False).sign(self.key, hashes.SHA256())
        )
        paths = self.directory / f"{name}.cert.pem", self.directory / f"{name}.key.pem"
        paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
        return paths


def draft(name: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    issuer_name, subject = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (issuer, name)
    )
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(issuer_name, subject, key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))


@asynccontextmanager
async def behind_tls(target: str, authority: Authority) -> AsyncIterator[str]:
    """Demand a certificate of the authority, and pass what is inside on."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.load_cert_chain(*authority.issue("server"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    host, port = target.split(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, upstream[1]), copy(upstream[0], writer))

    server = await asyncio.start_server(serve, HOST, 0, ssl=context)
    yield f"{HOST}:{server.sockets[0].getsockname()[1]}"
    server.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> AsyncIterator[str]:
    async with (
        temporal_server(tmp_path_factory.mktemp("temporal")) as server,
        behind_tls(server.target, authority) as encrypted,
    ):
        yield encrypted


def settings(
    address: str, authority: Path | None = None, own: tuple[Path, Path] | None = None
) -> TemporalSettings:
    certificate, key = own or (None, None)
    return TemporalSettings(
        address=address,
        connect_timeout=3.0,
        tls=True,
        tls_authority_file=authority,
        tls_certificate_file=certificate,
        tls_key_file=key,
    )


async def test_a_client_with_a_certificate_is_let_in(address: str, authority: Authority) -> None:
    client = await ReleaseClient.connect(settings=settings(address, authority.file, authority.issue("cli")))
    assert await client.active_artifact(NOBODY) is None


async def test_temporals_own_command_is_let_in_by_the_variables_of_the_manifests(
    address: str, authority: Authority
) -> None:
    certificate, key = authority.issue("job")
    files = {"ca.crt": authority.file, "tls.crt": certificate, "tls.key": key}
    component = yaml.safe_load(COMPONENT.read_text())
    (patch,) = [one["patch"] for one in component["patches"] if one["target"]["kind"] == "Job"]
    variables = {
        one["name"]: str(files[Path(one["value"]).name]) for one in yaml.safe_load(patch)[0]["value"]
    }
    command = (str(find_binary("temporal")), "operator", "namespace", "list", "--address", address)
    process = await asyncio.create_subprocess_exec(
        *command, env={**variables, "HOME": "/nonexistent"}, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    assert b"default" in output


async def test_a_client_without_one_is_not(address: str, authority: Authority) -> None:
    with pytest.raises(TemporalUnreachable):
        await ReleaseClient.connect(settings=settings(address, authority.file))


async def test_a_certificate_of_somebody_else_is_worth_nothing(
    address: str, authority: Authority, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path, "other")
    with pytest.raises(TemporalUnreachable):
        await ReleaseClient.connect(settings=settings(address, authority.file, other.issue("cli")))


async def test_a_server_of_somebody_else_is_not_believed(
    address: str, authority: Authority, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path, "other")
    with pytest.raises(TemporalUnreachable):
        await ReleaseClient.connect(settings=settings(address, other.file, authority.issue("cli")))


async def test_files_that_cannot_be_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(InvalidInput, match="WEIGHTSHIFT_TEMPORAL_TLS_AUTHORITY_FILE"):
        await ReleaseClient.connect(settings=settings("127.0.0.1:1", missing))
    half = TemporalSettings(tls_key_file=missing)
    with pytest.raises(InvalidInput, match="go together"):
        await ReleaseClient.connect(settings=half)

"""Artifacts in S3, or in anything that speaks its protocol."""

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from weightshift.artifacts.base import check_key
from weightshift.artifacts.files import open_file
from weightshift.errors import DigestMismatch, ObjectStoreUnreachable, UnknownArtifact, UnsafeArtifact

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

PART_BYTES = 8 << 20
MAX_PARTS = 10_000
PARTS_IN_FLIGHT = 3
"""Parts of one file sent at once; with the one being read this bounds the memory a file takes."""

_CONFIG = Config(
    connect_timeout=5,
    read_timeout=30,
    retries={"mode": "standard", "total_max_attempts": 4},
    max_pool_connections=32,
    # Newer defaults add checksum trailers that other services than AWS refuse; our digests decide anyway.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)
_MISSING = {"404", "NoSuchKey", "NotFound"}
_EXISTING = {"412", "PreconditionFailed"}


class _Condition(TypedDict, total=False):
    IfNoneMatch: str


class S3ObjectStore:
    """An `ObjectStore` in one bucket. Credentials come from the standard boto3 chain.

    `endpoint` is for services other than AWS. Uploads are conditional on the key being free.
    """

    def __init__(self, *, bucket: str, prefix: str = "", endpoint: str | None = None) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        # The module's shared session would keep the credentials it found first for the whole process.
        session = boto3.session.Session()
        self._client: S3Client = session.client("s3", endpoint_url=endpoint, config=_CONFIG)

    def uri(self, key: str) -> str:
        """Return a readable address of a key."""
        return f"s3://{self._bucket}/{self._key(key)}"

    def exists(self, key: str) -> bool:
        """Whether the key holds an object."""
        with _reachable():
            try:
                self._client.head_object(Bucket=self._bucket, Key=self._key(key))
            except ClientError as error:
                if _code(error) in _MISSING:
                    return False
                raise
            return True

    def put_bytes(self, key: str, content: bytes) -> None:
        """Store a small object; an existing one is left alone."""
        with _reachable():
            _if_absent(
                lambda condition: self._client.put_object(
                    Bucket=self._bucket, Key=self._key(key), Body=content, **condition
                )
            )

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        progress: Callable[[int], None] | None = None,
        sha256: str | None = None,
    ) -> None:
        """Store a file's content. Raises `DigestMismatch` when it is not `sha256`, and stores nothing."""
        report = progress or (lambda _: None)
        with open_file(path.parent, path.name) as file:
            size = os.fstat(file.fileno()).st_size
            part_bytes = max(PART_BYTES, -(-size // MAX_PARTS))
            if size > part_bytes:
                self._put_parts(key, file, part_bytes, report, sha256)
                return
            content = _read_exactly(file, part_bytes + 1)
            _check(key, hashlib.sha256(content).hexdigest(), sha256)
            self.put_bytes(key, content)
            report(len(content))

    def stream(self, key: str, *, chunk_bytes: int = 1 << 20, offset: int = 0) -> Iterator[bytes]:
        """Yield an object's bytes from `offset`. Raises `UnknownArtifact` when there is none."""
        with _reachable():
            try:
                answer = self._client.get_object(
                    Bucket=self._bucket, Key=self._key(key), Range=f"bytes={offset}-"
                )
            except ClientError as error:
                if _code(error) in _MISSING:
                    raise UnknownArtifact(f"The store holds no {key}; push the artifact again.") from error
                if _code(error) in {"416", "InvalidRange"}:
                    return
                raise
            with closing(answer["Body"]) as body:
                if answer.get("ContentEncoding") not in (None, "", "identity", "aws-chunked"):
                    raise UnsafeArtifact(f"{key} is stored with a content encoding; push it again as it is.")
                yield from body.iter_chunks(chunk_bytes)

    def _key(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _put_parts(
        self, key: str, file: FileIO, part_bytes: int, report: Callable[[int], None], sha256: str | None
    ) -> None:
        """Send a file in parts; nobody sees any of them before the digest of the whole is right."""
        name = self._key(key)
        with _reachable():
            upload = self._client.create_multipart_upload(Bucket=self._bucket, Key=name)["UploadId"]
            try:
                digest, tags = self._send_parts(name, upload, file, part_bytes, report)
                _check(key, digest, sha256)
                parts: list[CompletedPartTypeDef] = [
                    {"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, start=1)
                ]
                completed = _if_absent(
                    lambda condition: self._client.complete_multipart_upload(
                        Bucket=self._bucket,
                        Key=name,
                        UploadId=upload,
                        MultipartUpload={"Parts": parts},
                        **condition,
                    )
                )
            except BaseException:
                self._abort(name, upload)
                raise
            if not completed:
                self._abort(name, upload)

    def _abort(self, name: str, upload: str) -> None:
        # What cannot be aborted now is left to the bucket's lifecycle rule.
        with suppress(BotoCoreError, ClientError):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload)

    def _send_parts(
        self, name: str, upload: str, file: FileIO, part_bytes: int, report: Callable[[int], None]
    ) -> tuple[str, list[str]]:
        digest, tags = hashlib.sha256(), list[str]()
        in_flight: list[Future[str]] = []

        def send(number: int, content: bytes) -> str:
            tag = self._client.upload_part(
                Bucket=self._bucket, Key=name, UploadId=upload, PartNumber=number, Body=content
            )["ETag"]
            report(len(content))
            return tag

        with ThreadPoolExecutor(PARTS_IN_FLIGHT, thread_name_prefix="part") as pool:
            while content := _read_exactly(file, part_bytes):
                digest.update(content)
                if len(in_flight) == PARTS_IN_FLIGHT:
                    tags.append(in_flight.pop(0).result())
                in_flight.append(pool.submit(send, len(tags) + len(in_flight) + 1, content))
            tags.extend(future.result() for future in in_flight)
        return digest.hexdigest(), tags


def _read_exactly(file: FileIO, count: int) -> bytes:
    """Read `count` bytes, or all that are left; one unbuffered read may return fewer."""
    content = file.read(count)
    while len(content) < count and (chunk := file.read(count - len(content))):
        content += chunk
    return content


def _check(key: str, actual: str, expected: str | None) -> None:
    if expected not in (None, actual):
        raise DigestMismatch(f"The file for {key} changed since it was hashed; build it again.")


def _code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")


def _if_absent(put: Callable[[_Condition], object]) -> bool:
    """Put on condition that the key is free, where the service knows conditions; say whether it was.

    A taken key is fine: keys are content-addressed, so whoever was first stored the same bytes.
    """
    try:
        put({"IfNoneMatch": "*"})
    except ClientError as error:
        if _code(error) in _EXISTING:
            return False
        if _code(error) != "NotImplemented":
            raise
        put({})
    return True


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except (BotoCoreError, ClientError, OSError) as error:
        reason = _code(error) if isinstance(error, ClientError) else type(error).__name__
        raise ObjectStoreUnreachable(
            f"The object store does not answer as expected ({reason}); check WEIGHTSHIFT_STORE_URL, "
            "WEIGHTSHIFT_STORE_ENDPOINT and the credentials."
        ) from error

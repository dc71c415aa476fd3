"""Artifacts in S3, or in anything that speaks its protocol."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from weightshift.artifacts.base import check_key
from weightshift.artifacts.files import open_file
from weightshift.artifacts.s3_upload import (
    MultipartUpload,
    error_code,
    is_upload_gone,
    put_if_absent,
    read_exactly,
)
from weightshift.errors import DigestMismatch, ObjectStoreUnreachable, UnknownArtifact, UnsafeArtifact

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PART_BYTES = 8 << 20
MAX_PARTS = 10_000

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
                if error_code(error) in _MISSING:
                    return False
                raise
            return True

    def put_bytes(self, key: str, content: bytes) -> None:
        """Store a small object; an existing one is left alone."""
        with _reachable():
            put_if_absent(
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
            content = read_exactly(file, part_bytes + 1)
            _check(key, hashlib.sha256(content).hexdigest(), sha256)
            self.put_bytes(key, content)
            report(len(content))

    def stream(
        self, key: str, *, chunk_bytes: int = 1 << 20, offset: int = 0, length: int | None = None
    ) -> Iterator[bytes]:
        """Yield an object's bytes from `offset`. Raises `UnknownArtifact` when there is none."""
        last = "" if length is None else str(offset + length - 1)
        with _reachable():
            try:
                answer = self._client.get_object(
                    Bucket=self._bucket, Key=self._key(key), Range=f"bytes={offset}-{last}"
                )
            except ClientError as error:
                if error_code(error) in _MISSING:
                    raise UnknownArtifact(f"The store holds no {key}; push the artifact again.") from error
                if error_code(error) in {"416", "InvalidRange"}:
                    return
                raise
            with closing(answer["Body"]) as body:
                if answer.get("ContentEncoding") not in (None, "", "identity", "aws-chunked"):
                    raise UnsafeArtifact(f"{key} is stored with a content encoding; push it again as it is.")
                _check_range(answer.get("ContentRange", ""), offset)
                yield from body.iter_chunks(chunk_bytes)

    def _key(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _put_parts(
        self, key: str, file: FileIO, part_bytes: int, report: Callable[[int], None], sha256: str | None
    ) -> None:
        upload = MultipartUpload(
            client=self._client,
            bucket=self._bucket,
            key=self._key(key),
            part_bytes=part_bytes,
            report=report,
        )
        with _reachable():
            try:
                upload.send(file, sha256=sha256)
            except ClientError as error:
                if not (is_upload_gone(error) and self.exists(key)):
                    raise


def _check_range(content_range: str, offset: int) -> None:
    """Refuse what a service sends that ignores ranges: everything, from the start."""
    if offset > 0 and not content_range.startswith(f"bytes {offset}-"):
        raise ObjectStoreUnreachable("The object store ignores byte ranges; use one that serves them.")


def _check(key: str, actual: str, expected: str | None) -> None:
    if expected not in (None, actual):
        raise DigestMismatch(f"The file for {key} changed since it was hashed; build it again.")


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except (BotoCoreError, ClientError, OSError) as error:
        reason = error_code(error) if isinstance(error, ClientError) else type(error).__name__
        raise ObjectStoreUnreachable(
            f"The object store does not answer as expected ({reason}); check WEIGHTSHIFT_STORE_URL, "
            "WEIGHTSHIFT_STORE_ENDPOINT and the credentials."
        ) from error

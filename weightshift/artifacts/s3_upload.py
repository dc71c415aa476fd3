"""One large file to S3 in parts; an upload that was interrupted goes on where it stopped."""

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from typing import TYPE_CHECKING, TypedDict

from botocore.exceptions import BotoCoreError, ClientError

from weightshift.errors import DigestMismatch

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

PARTS_IN_FLIGHT = 3
"""Parts of one file sent at once; with the one being read this bounds the memory a file takes."""

_EXISTING = {"412", "PreconditionFailed"}
# Not every key may list uploads; then each attempt begins anew.
_NOT_LISTED = {"403", "AccessDenied", "NotImplemented"}
_GONE = {"404", "NoSuchUpload"}


class _Condition(TypedDict, total=False):
    IfNoneMatch: str


class MultipartUpload:
    """Sends one file's parts to one key; nobody sees any of them before the whole is right.

    Parts that an interrupted attempt has left are kept where the service names the content it holds
    (an ETag that is an MD5); everywhere else they are sent again. `report` gets the bytes of each part.
    """

    def __init__(
        self,
        *,
        client: "S3Client",
        bucket: str,
        key: str,
        part_bytes: int,
        report: Callable[[int], None],
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        self._part_bytes = part_bytes
        self._report = report

    def send(self, file: FileIO, *, sha256: str | None) -> None:
        """Send an open file.

        Raises `DigestMismatch` when it is not `sha256`, and then leaves nothing behind; after a failure
        of the service what was sent stays for the next attempt.
        """
        upload, sent = self._open()
        digest, tags = self._send_parts(file, upload, sent)
        if sha256 not in (None, digest):
            self._abort(upload)
            raise DigestMismatch(f"The file for {self._key} changed since it was hashed; build it again.")
        if not self._complete(upload, tags):
            self._abort(upload)

    def _open(self) -> tuple[str, Mapping[int, str]]:
        """Return the newest unfinished upload of this key and its parts, or a new one."""
        upload = self._unfinished()
        if upload is None:
            return self._client.create_multipart_upload(Bucket=self._bucket, Key=self._key)["UploadId"], {}
        pages = self._client.get_paginator("list_parts").paginate(
            Bucket=self._bucket, Key=self._key, UploadId=upload
        )
        parts = [part for page in pages for part in page.get("Parts", ())]
        return upload, {part["PartNumber"]: part["ETag"] for part in parts}

    def _unfinished(self) -> str | None:
        try:
            found = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=self._key)
        except ClientError as error:
            if error_code(error) in _NOT_LISTED:
                return None
            raise
        mine = [upload for upload in found.get("Uploads", ()) if upload.get("Key") == self._key]
        return max(mine, key=lambda item: item["Initiated"])["UploadId"] if mine else None

    def _send_parts(self, file: FileIO, upload: str, sent: Mapping[int, str]) -> tuple[str, list[str]]:
        digest, tags = hashlib.sha256(), list[str]()
        in_flight: list[Future[str]] = []

        def send(number: int, content: bytes) -> str:
            tag = sent.get(number, "")
            if tag.strip('"') != hashlib.md5(content, usedforsecurity=False).hexdigest():
                tag = self._client.upload_part(
                    Bucket=self._bucket, Key=self._key, UploadId=upload, PartNumber=number, Body=content
                )["ETag"]
            self._report(len(content))
            return tag

        with ThreadPoolExecutor(PARTS_IN_FLIGHT, thread_name_prefix="part") as pool:
            while content := read_exactly(file, self._part_bytes):
                digest.update(content)
                if len(in_flight) == PARTS_IN_FLIGHT:
                    tags.append(in_flight.pop(0).result())
                in_flight.append(pool.submit(send, len(tags) + len(in_flight) + 1, content))
            tags.extend(future.result() for future in in_flight)
        return digest.hexdigest(), tags

    def _complete(self, upload: str, tags: list[str]) -> bool:
        parts: list[CompletedPartTypeDef] = [
            {"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, start=1)
        ]
        return put_if_absent(
            lambda condition: self._client.complete_multipart_upload(
                Bucket=self._bucket,
                Key=self._key,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                **condition,
            )
        )

    def _abort(self, upload: str) -> None:
        # What cannot be aborted now is left to the bucket's lifecycle rule.
        with suppress(BotoCoreError, ClientError):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=self._key, UploadId=upload)


def error_code(error: ClientError) -> str:
    """Return the service's name for an error."""
    return error.response.get("Error", {}).get("Code", "")


def is_upload_gone(error: ClientError) -> bool:
    """Whether somebody else has completed or aborted the upload meanwhile."""
    return error_code(error) in _GONE


def put_if_absent(put: Callable[[_Condition], object]) -> bool:
    """Put on condition that the key is free, where the service knows conditions; say whether it was.

    A taken key is fine: keys are content-addressed, so whoever was first stored the same bytes.
    """
    try:
        put({"IfNoneMatch": "*"})
    except ClientError as error:
        if error_code(error) in _EXISTING:
            return False
        if error_code(error) != "NotImplemented":
            raise
        put({})
    return True


def read_exactly(file: FileIO, count: int) -> bytes:
    """Read `count` bytes, or all that are left; one unbuffered read may return fewer."""
    content = file.read(count)
    while len(content) < count and (chunk := file.read(count - len(content))):
        content += chunk
    return content

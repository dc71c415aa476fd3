"""Choosing the object store that the settings name; nothing in an artifact has a say in it."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from weightshift.artifacts.base import ObjectStore
from weightshift.artifacts.file import FileObjectStore
from weightshift.artifacts.s3 import S3ObjectStore
from weightshift.errors import InvalidInput
from weightshift.settings import StoreSettings


def open_store(settings: StoreSettings) -> ObjectStore:
    """Return the store for `s3://bucket/prefix` or `file:///directory`. Raises `InvalidInput`."""
    url = urlsplit(settings.url)
    path = unquote(url.path)
    if url.scheme == "s3" and url.netloc and not (url.query or url.fragment):
        return S3ObjectStore(bucket=url.netloc, prefix=path.strip("/"), endpoint=settings.endpoint)
    if url.scheme == "file" and not url.netloc and path not in ("", "/"):
        return FileObjectStore(root=Path(path))
    raise InvalidInput(
        f"WEIGHTSHIFT_STORE_URL {settings.url!r} is not s3://bucket/prefix or file:///directory; set one."
    )

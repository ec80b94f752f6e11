"""Reads the checksums of objects and the regions of buckets from Google Cloud Storage.

    below("gs://bucket/cache")       # {"toy/COMPLETED": Facts(310, "yZRlqg=="), ...}
    of_file("/tmp/part")             # Facts(310, "yZRlqg=="), for a local file
    locations("bucket")              # ["EUROPE-WEST4"]

TensorFlow's file system for `gs://` cannot return checksums or regions. So this module sends its
requests with the package google-cloud-storage, which retries failed requests. This module looks for
credentials in the same places and in the same order as TensorFlow, so both act as the same user.
Every failure is an `OSError`.
"""

import base64
import contextlib
import errno
import functools
import os
import posixpath
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import google_crc32c

from t0.files import paths

SCHEME = "gs://"
TOKEN_VARIABLE = "GOOGLE_AUTH_TOKEN_FOR_TESTING"
FILE_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_BLOCK_BYTES = 1 << 20
# HTTP status -> errno. OSError chooses its subclass by errno.
_NUMBERS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 429: errno.EBUSY}


class Facts(NamedTuple):
    """The size of an object or file, and its checksum in base 64, as in Google's API."""

    size_bytes: int
    crc32c: str


def applies(path: "str | os.PathLike[str]") -> bool:
    """Returns whether a path is in a bucket of Google Cloud Storage."""
    return os.fspath(path).startswith(SCHEME)


def split(path: "str | os.PathLike[str]") -> tuple[str, str]:
    """Splits a `gs://` path into bucket and object name.

    >>> split("gs://b/cache/toy/")
    ('b', 'cache/toy')
    """
    bucket, _, name = os.fspath(path).removeprefix(SCHEME).partition("/")
    return bucket, name.strip("/")


def below(folder: "str | os.PathLike[str]") -> dict[str, Facts]:
    """Lists all objects below a folder with few requests.

    Returns:
      path relative to the folder -> size and checksum.

    Raises:
      OSError: if the folder may not be listed.
    """
    bucket, name = split(folder)
    prefix = f"{name}/" if name else ""
    fields = "items(name,size,crc32c),nextPageToken"
    with _translate_errors(folder) as client:
        objects = list(client.list_blobs(bucket, prefix=prefix, fields=fields))
    # An object whose name ends in "/" stands for an empty folder.
    blobs = (blob for blob in objects if not blob.name.endswith("/"))
    return {blob.name.removeprefix(prefix): Facts(blob.size, blob.crc32c) for blob in blobs}


def of_file(path: "str | os.PathLike[str]") -> Facts:
    """Returns the size and checksum of a local file.

    Raises:
      OSError: if the file cannot be read.
    """
    checksum = google_crc32c.Checksum()
    with paths.opened(path) as file:
        size = sum(map(len, checksum.consume(file, _BLOCK_BYTES)))
    return Facts(size, base64.b64encode(checksum.digest()).decode())


def locations(bucket: str) -> list[str]:
    """Returns where a bucket is: its region, its two regions, or the name of its multi-region.

    Raises:
      OSError: if there is no such bucket, or the permission storage.buckets.get is missing.
    """
    with _translate_errors(f"{SCHEME}{bucket}") as client:
        # Without a retry, because the client would repeat its request for two minutes.
        details = client.get_bucket(bucket, retry=None)
    return list(details.data_locations or [details.location])


def upload(pairs: Sequence[tuple[str, str]]) -> None:
    """Uploads files, several at a time. The bucket compares their checksums.

    Args:
      pairs: for each file, its local path, and its path in a bucket.

    Raises:
      OSError: if a file cannot be read or uploaded.
    """
    if not pairs:
        return
    with _translate_errors(posixpath.dirname(pairs[0][1])) as client:
        from google.cloud.storage import transfer_manager

        blobs = [
            (source, client.bucket(bucket).blob(name))
            for source, target in pairs
            for bucket, name in [split(target)]
        ]
        transfer_manager.upload_many(
            blobs, raise_exception=True, worker_type=transfer_manager.THREAD
        )


def _client() -> Any:
    # A forked process must not share a connection with its parent. So the process id is part of the
    # key under which the client is cached.
    return _make_client(os.getpid(), os.environ.get(TOKEN_VARIABLE), os.environ.get(FILE_VARIABLE))


@functools.lru_cache(maxsize=1)
def _make_client(pid: int, token: str | None, file: str | None) -> Any:
    """Returns a client with the credentials that TensorFlow would use, or an anonymous client."""
    del pid, file
    import google.auth
    from google.auth import credentials, exceptions
    from google.oauth2.credentials import Credentials

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about old Python versions
        from google.cloud import storage
    if token:
        chosen = Credentials(token)
    else:
        try:
            chosen, _ = google.auth.default(scopes=[_SCOPE])
        except exceptions.DefaultCredentialsError:
            chosen = credentials.AnonymousCredentials()
    # Objects belong to buckets, not to projects, so any project name works.
    return storage.Client(project="none", credentials=chosen)


@contextlib.contextmanager
def _translate_errors(path: "str | os.PathLike[str]") -> Iterator[Any]:
    """Yields the client, and turns its errors inside a `with` block into `OSError`s."""
    client = _client()
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from requests import RequestException

    try:
        yield client
    except exceptions.GoogleAPIError as error:
        status = int(getattr(error, "code", None) or 0)
        why = f"{getattr(error, 'message', error)} (HTTP response code {status})"
        raise OSError(_NUMBERS.get(status, errno.EIO), why, os.fspath(path)) from error
    except GoogleAuthError as error:
        why = f"the credentials are not accepted: {error.args[0] if error.args else error}"
        raise PermissionError(errno.EACCES, why, os.fspath(path)) from error
    except (RequestException, DataCorruption, InvalidResponse) as error:
        raise OSError(errno.EIO, f"no answer: {error}", os.fspath(path)) from error

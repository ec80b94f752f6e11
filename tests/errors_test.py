"""Errors in reading become messages that name the file, whatever raised them."""

import errno
import zlib
from pathlib import Path

import pytest

from t0.config.gin_files import search_path
from t0.errors import (
    ABSENT,
    FORBIDDEN,
    UNREACHABLE,
    UserError,
    classify_remote,
    describe_remote,
    reading,
    refuse_unanswered,
    substitute_for,
)


class Odd(Exception):
    """Stands for the error of a format's library."""


@pytest.mark.parametrize(
    "fault",
    [PermissionError(13, "Permission denied"), EOFError("cut off"), zlib.error("bad"), Odd("odd")],
    ids=lambda fault: type(fault).__name__,
)
def test_error_message_of_reading_names_file_and_reason(fault):
    wanted = r"^/data/a\.gz: cannot be read: .*It may be incomplete"
    with pytest.raises(UserError, match=wanted) as caught, reading("/data/a.gz", Odd):
        raise fault
    assert (getattr(fault, "strerror", None) or str(fault)) in str(caught.value)


def test_error_of_another_kind_is_not_changed_by_reading():
    with pytest.raises(KeyError), reading("/data/a.gz"):
        raise KeyError("x")


GCS = 'Error executing an HTTP request: HTTP response code {} with body \'{{\n "error": {{\n  '
GCS += '"code": {},\n  "message": "{}"\n }}\n}}\''
CLOSED = "The caller does not have storage.objects.get access to it."
ANONYMOUS = "Anonymous caller does not have storage.objects.get access to it."


@pytest.mark.parametrize(
    ("text", "kind", "advice"),
    [
        (GCS.format(404, 404, "The specified bucket does not exist."), ABSENT, "no such bucket"),
        ("The specified path gs://b/m was not found.", ABSENT, "is the path right"),
        (GCS.format(401, 401, "Invalid Credentials"), FORBIDDEN, "log in again"),
        (GCS.format(401, 401, ANONYMOUS), FORBIDDEN, "nobody is logged in"),
        (GCS.format(403, 403, CLOSED), FORBIDDEN, "this account has no permission"),
        ("libcurl code 6 meaning 'Couldn't resolve host name'", UNREACHABLE, "https_proxy"),
        ("All 10 retry attempts failed. The last failure: libcurl", UNREACHABLE, "https_proxy"),
        (GCS.format(503, 503, "Backend Error"), UNREACHABLE, "does not answer"),
        ("RepositoryNotFoundError: 401 Client Error. Repository Not Found", ABSENT, "private"),
        ("GatedRepoError: 403 Client Error. Access to it is restricted", FORBIDDEN, "terms"),
        ("HfHubHTTPError: 403 Forbidden: check your token", FORBIDDEN, "has no permission"),
        ("ConnectError: [Errno -3] Temporary failure in name resolution", UNREACHABLE, "answer"),
        ("ConnectionError: HF_HUB_OFFLINE is set", UNREACHABLE, "answer"),
        ("EntryNotFoundError: 404 Client Error", ABSENT, "name right"),
    ],
)
def test_remote_error_is_absent_forbidden_or_unreachable(text, kind, advice):
    found, do = classify_remote(text)
    assert found == kind
    assert advice in do
    line = describe_remote(text)
    assert line.startswith(f"{kind}: ")
    assert "\n" not in line
    assert "{" not in line


def test_remote_error_of_another_kind_is_not_classified():
    assert classify_remote(ValueError("Unknown split 'x'")) is None
    assert describe_remote(ValueError("Unknown\nsplit")) == "Unknown split"


@pytest.mark.parametrize(
    ("place", "file"),
    [
        ("t5.1.1.lm100k.xxl/operative_config.gin", "t5.1.1.lm100k.xxl"),
        ("t5.1.1.small/operative_config.gin", "t5.1.1.small"),
        ("mt5/base/operative_config.t0.gin", "mt5.base"),
        ("3B/operative_config.gin", "t5.1.0.3B"),
    ],
)
def test_error_message_substitute_for_operative_config_exists(place, file):
    text = substitute_for(f"gs://t5-data/pretrained_models/{place}")
    assert text.endswith(f"--gin_file=models/{file}.gin")
    folders = (Path(folder) for folder in search_path())
    assert any((folder / "models" / f"{file}.gin").is_file() for folder in folders)


@pytest.mark.parametrize(
    ("path", "flag"),
    [
        ("gs://b/mine.gin", "--gin_file=FILE"),
        ("gs://b/sentencepiece.model", "--vocab=FILE"),
        ("gs://b/model.ckpt-5.index", "--checkpoint=PATH"),
    ],
)
def test_error_message_names_a_flag_for_a_local_copy(path, flag):
    assert substitute_for(path).startswith(f"Instead, use a local copy: {flag}")
    assert substitute_for("gs://b/rows.csv") is None


def test_remote_error_forbidden_file_is_not_reported_as_damaged():
    error = PermissionError(errno.EACCES, describe_remote(GCS.format(403, 403, CLOSED)), "gs://b/x")
    with pytest.raises(UserError, match=r"^gs://b/x: forbidden: HTTP response code 403, The call"):
        refuse_unanswered(error)
    refuse_unanswered(FileNotFoundError(errno.ENOENT, "not found: x", "gs://b/x"))
    refuse_unanswered(PermissionError(errno.EACCES, "Permission denied", "/b/x"))
    with pytest.raises(UserError, match=r"^gs://b/x: forbidden"), reading("gs://b/x"):
        raise error

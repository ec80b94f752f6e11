"""Defines user errors, which commands report as a message without a traceback.

    with reported("seqio_cache_tasks"):
        raise UserError("no such folder: /data; set it with --data_dir")   # exit status 2

A message says what was given, what was expected and how to fix it. Any other exception is a bug in
this program and keeps its traceback.
"""

import contextlib
import difflib
import errno
import os
import re
import signal
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

USER_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as in shells
BROKEN_PIPE = 141  # 128 + SIGPIPE
TERMINATED = 143  # 128 + SIGTERM
# Control characters except tab and line feed, lone surrogates (not valid in UTF-8), and the two
# code points that XML forbids.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class UserError(Exception):
    """An error that the user can fix: a wrong path, an unknown name, a malformed file."""


class AbsentData(UserError):
    """The data of a dataset or split is missing. Commands for many datasets may skip it.

    Args:
      message: the message for the user.
      splits: the missing splits, each a `t0.sources.AbsentSplit`; () if the source is not a dataset.
    """

    def __init__(self, message: str, splits: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.splits = tuple(splits)


def printable(text: str) -> str:
    r"""Escapes control characters and lone surrogates, so that a text is safe to print.

    >>> printable("red: \x1b[31m, half of a pair: \ud800")
    'red: \\x1b[31m, half of a pair: \\ud800'
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Prints a text that contains paths or external names, with control characters escaped."""
    print(printable(text), flush=True)


def nearest(name: str, known: Iterable[str], count: int = 3, cutoff: float = 0.5) -> list[str]:
    """Returns up to `count` of the known names closest to `name`, best first.

    >>> nearest("t0_trian", ["t0_train", "t0+_train", "glue"])
    ['t0_train', 't0+_train']
    """
    return difflib.get_close_matches(name, list(known), n=count, cutoff=cutoff)


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UserError:
    """Returns the error for an unknown name, which suggests the most similar known names."""
    close = nearest(name, known)
    sentences = [f"unknown {kind} '{name}'."]
    if close:
        sentences.append("Did you mean " + " or ".join(f"'{c}'" for c in close) + "?")
    if hint:
        sentences.append(hint)
    return UserError(" ".join(sentences))


def is_checkout() -> bool:
    """Returns whether this package runs from a source checkout, which has `bin/setup`."""
    return (Path(__file__).resolve().parents[1] / "bin" / "setup").is_file()


def install_command(extra: str) -> str:
    """Returns the command that installs an optional extra without breaking the installation.

    Args:
      extra: "torch", "hf" (PyTorch and transformers), "quantized" (PyTorch and bitsandbytes) or
        "tpu".
    """
    if is_checkout():
        return f"bin/setup --with {extra}"
    # pip may reinstall SeqIO, whose command would then overwrite our command of the same name. So
    # our package is installed again.
    again = "python -m pip install --no-deps --force-reinstall t0"
    return f"python -m pip install 't0[{extra}]' && {again}"


# User errors raised inside a Python generator that TensorFlow runs. See `remembered`.
_raised_in_generators: list[UserError] = []


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Stores a UserError that is raised in a `with` block, before TensorFlow wraps the error.

    If a generator of `tf.data.Dataset.from_generator` raises an exception, TensorFlow replaces the
    exception with a runtime error that has a very long message. For this runtime error, `original`
    returns the stored UserError.
    """
    try:
        yield
    except UserError as error:
        _raised_in_generators.append(error)
        raise


def original(error: BaseException) -> BaseException:
    """Returns the UserError that caused TensorFlow's `error`; if there is none, returns `error`."""
    if isinstance(error, UserError):
        return error
    text = str(error)
    for user_error in _raised_in_generators:
        if str(user_error).splitlines()[0] in text:
            return user_error
    return error


def short_reason(error: BaseException) -> str:
    r"""Returns the first line of an error's message, or the error's type if the message is empty.

    >>> short_reason(ValueError("no\nsecond line")), short_reason(KeyboardInterrupt())
    ('no', 'KeyboardInterrupt')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# Substrings of messages about a full disk. `os.strerror` returns the message in the system's
# language.
_FULL = ("No space left", "Disk quota exceeded", os.strerror(errno.ENOSPC), "File too large")


def write_reason(error: BaseException) -> str:
    """Returns a short reason why a file could not be written."""
    text = _message_of(error)
    # TensorFlow may put the reason below a first line such as "Graph execution error:".
    if any(words in text for words in _FULL):
        return "the disk is full"
    return (text.splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def reading(path: Path | str, *faults: type[Exception]) -> Iterator[None]:
    """Converts errors in reading a file to UserErrors that name the file.

    Args:
      path: the file.
      faults: the error types that the library for the file format raises. Errors of the operating
        system are always converted.
    """
    try:
        yield
    except (OSError, EOFError, zlib.error, *faults) as error:
        remote = remote_mistake(error)
        if remote:
            raise UserError(remote) from error
        text = short_reason(error).rstrip(".")
        raise UserError(
            f"{path}: cannot be read: {text}. It may be incomplete, or in another format than "
            "its name says. Copy or write it again."
        ) from error


ABSENT, FORBIDDEN, UNREACHABLE = "not found", "forbidden", "unreachable"
# Each row: a pattern in the message of a failed request (to gs://, http or the Hugging Face hub),
# the kind of failure, and advice. The first matching row counts. The row for missing repositories
# precedes the row for 401, because the hub may also answer 401 if a repository does not exist.
_REMOTE = (
    (r"GatedRepo", FORBIDDEN, "accept the terms on its page, then log in: hf auth login"),
    (
        r"Repository ?Not ?Found",
        ABSENT,
        "is the name right? It may also be private: log in with hf auth login",
    ),
    (r"(Revision|Entry)NotFound|Dataset\w*NotFound", ABSENT, "is the name right?"),
    (r"Anonymous caller", FORBIDDEN, "nobody is logged in: gcloud auth application-default login"),
    (
        r"(response code|status|^|\W)\W*401\b",
        FORBIDDEN,
        "the credentials are not valid, or have expired: log in again",
    ),
    (
        r"(response code|status|^|\W)\W*403\b|Access denied",
        FORBIDDEN,
        "this account has no permission: ask for storage.objectAdmin on the bucket, or for "
        "storage.objectViewer to read",
    ),
    (r"bucket does not exist", ABSENT, "there is no such bucket: is its name right?"),
    (
        r"libcurl code|response code 0|response code (429|5\d\d)|retry attempts failed|[Rr]esolv"
        r"|Connect(ion)?(Error|Timeout)|Connection (refused|reset)|Timeout|timed out"
        r"|OFFLINE|[Oo]ffline mode|Temporary failure|[Nn]etwork is unreachable|Max retries"
        r"|LocalEntryNotFound|couldn't connect|Cannot reach|outgoing traffic",
        UNREACHABLE,
        "the network, or its proxy (https_proxy), does not answer here",
    ),
    (r"404|[Nn]ot (be )?found|[Nn]o such (file|object)", ABSENT, "is the path right?"),
)


_PUBLISHED_CONFIG = re.compile(
    r".*/(?:(t5\.1\.1\.[\w.]+)|mt5/(\w+)|pretrained_models/(\w+))/operative_config(?:\.t0)?\.gin"
)


# The form of a remote file's path -> a flag for a local substitute.
_SUBSTITUTES = {
    r".*(sentencepiece|spiece)[^/]*\.model": "--vocab=FILE",
    r".*/model\.ckpt-\d+[^/]*": "--checkpoint=PATH, also a Hugging Face folder",
    r".*\.gin": "--gin_file=FILE",
}


def substitute_for(path: str) -> str | None:
    """Returns a sentence that names the local substitute of a remote file, or None.

    >>> substitute_for("gs://t5-data/pretrained_models/mt5/xl/operative_config.gin")
    'A file of the same model: --gin_file=models/mt5.xl.gin'
    """
    match = _PUBLISHED_CONFIG.fullmatch(path)
    if not match:
        flags = (flag for form, flag in _SUBSTITUTES.items() if re.fullmatch(form, path))
        return next((f"Instead, use a local copy: {flag}" for flag in flags), None)
    name = match[1] or (f"mt5.{match[2]}" if match[2] else f"t5.1.0.{match[3]}")
    return f"A file of the same model: --gin_file=models/{name}.gin"


def classify_remote(error: BaseException | str) -> tuple[str, str] | None:
    """Classifies a failed request to gs://, http or the hub, and returns advice.

    Args:
      error: the error of any client, or its message.

    Returns:
      (kind, advice), where the kind is ABSENT, FORBIDDEN or UNREACHABLE; None for other errors.
    """
    text = error if isinstance(error, str) else f"{type(error).__name__}: {_message_of(error)}"
    matches = ((kind, advice) for words, kind, advice in _REMOTE if re.search(words, text))
    return next(matches, None)


def _message_of(error: BaseException) -> str:
    return str(getattr(error, "message", None) or error)


def remote_advice(error: BaseException) -> str | None:
    """Returns advice about a failed `gs://` request.

    Returns None if there is no advice, or if the only advice is "is the path right?".
    """
    _, advice = classify_remote(error) or (None, None)
    return None if advice == "is the path right?" else advice


def describe_remote(error: BaseException | str) -> str:
    """Describes a failed request in one line: its kind, the client's message and advice.

    >>> describe_remote("Error executing an HTTP request: HTTP response code 404 with body ''")
    'not found: HTTP response code 404. Is the path right?'
    """
    text = error if isinstance(error, str) else _message_of(error)
    if text.startswith((ABSENT, FORBIDDEN, UNREACHABLE)):
        return text  # `t0.files` has already described the error
    reason = " ".join(text.split())
    server_message = re.search(r'"message": "([^"]+)"', reason)
    reason = re.sub(r"^.*Error executing an HTTP request: | with body '.*", "", reason)
    reason = reason.partition(" when reading ")[0].strip().rstrip(".")
    reason = (
        f"{reason}, {server_message[1].rstrip('.')}"
        if server_message and server_message[1] not in reason
        else reason
    )
    reason = reason if len(reason) < 300 else f"{reason[:300]} ..."
    kind, advice = classify_remote(error) or (None, "")
    return f"{kind}: {reason}. {advice[0].upper()}{advice[1:]}" if kind else reason


def remote_mistake(error: BaseException) -> str | None:
    """Describes an error in reading or writing a `gs://` or http file; None for other errors.

    The description is one line. It says whether the file is absent, forbidden or unreachable, and
    gives advice. For the gin file of a published model, it names the local gin file.
    """
    path = str(getattr(error, "filename", None) or "")
    if not (isinstance(error, OSError) and "://" in path):
        is_tensorflow = type(error).__module__.startswith("tensorflow")
        match = re.search(r"gs://[^\s'\",;]+", _message_of(error)) if is_tensorflow else None
        if not match:
            return None
        path = match[0].rstrip("/.")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    local = substitute_for(path)
    doctor = " (t0 doctor --model_dir=gs://... asks)" if path.startswith("gs://") else ""
    return f"{path}: {describe_remote(reason)}{doctor}{f'. {local}' if local else ''}"


def refuse_unanswered(error: BaseException) -> None:
    """Raises a UserError if a remote file is forbidden or unreachable.

    Callers treat all other errors as signs of an absent or damaged file.
    """
    text = remote_mistake(error)
    if text and (classify_remote(error) or ("",))[0] in (FORBIDDEN, UNREACHABLE):
        raise UserError(text) from error


# Errors of the operating system about a path. The user can fix all of these errors.
_OF_PATHS = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR,
    errno.EISDIR, errno.ENOSPC, errno.EDQUOT,
)  # fmt: skip
# A pattern for these errors in TensorFlow's messages, such as "PATH; Permission denied".
_PATH_AND_REASON = re.compile(rf"(.+); ({'|'.join(os.strerror(number) for number in _OF_PATHS)})")


def describe_path_error(error: BaseException) -> str | None:
    """Describes an error about a path that cannot be used; returns None for other errors.

    >>> describe_path_error(PermissionError(errno.EACCES, "Permission denied", "/data/x.jsonl"))
    '/data/x.jsonl: Permission denied. Use another path, or fix the problem there'
    """
    path_and_reason = _path_and_reason(error)
    if not path_and_reason:
        return None
    path, reason = path_and_reason
    shown = path if len(path) < 300 else f"{path[:300]} ..."
    return f"{shown}: {reason}. Use another path, or fix the problem there"


def _path_and_reason(error: BaseException) -> tuple[str, str] | None:
    if type(error).__module__.startswith("tensorflow"):
        match = _PATH_AND_REASON.match(str(getattr(error, "message", "")))
        return (match[1], match[2]) if match else None
    if not isinstance(error, OSError) or error.errno not in _OF_PATHS or not error.filename:
        return None
    is_path = isinstance(error.filename, str | bytes)
    return os.fsdecode(error.filename) if is_path else "a file", error.strerror


@contextlib.contextmanager
def reported(name: str) -> Iterator[None]:
    """Turns exceptions that need no traceback into a message on stderr and an exit status.

    Args:
      name: the command as the user typed it, such as `t0 doctor`. The message starts with it.

    Raises:
      SystemExit: 2 for a `UserError`, 130 for Ctrl-C, 141 if the reader of stdout closed the pipe.
    """
    _escape_unencodable_characters()
    try:
        with interruptible(""):
            yield
        # Flush now. Otherwise a closed stdout would be noticed only when the interpreter exits.
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        saved = f": {error}" if str(error) else ""
        print(f"\n{name}: interrupted{saved}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # Otherwise Python would flush the rest of the buffer at exit, fail again and print a
        # message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(BROKEN_PIPE) from None
    except Exception as error:
        cause = original(error)
        text = str(cause) if isinstance(cause, UserError) else remote_mistake(cause)
        text = describe_path_error(cause) if text is None else text
        if text is None:
            raise
        print(f"{name}: {printable(_without_gin_calls(text))}", file=sys.stderr)
        raise SystemExit(USER_ERROR) from None


def _escape_unencodable_characters() -> None:
    r"""Makes stdout and stderr print escapes such as \xe9 for characters they cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Sets the message for a Ctrl-C in a `with` block: which results were saved, how to resume.

    If blocks are nested, the message of the innermost block is printed.

    Args:
      message: a sentence without a full stop, which `reported` prints after a Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(str(error) or message) from error
    except Exception as error:
        # If a library calls Python from C++, it may replace a KeyboardInterrupt with its own error.
        if "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt(message) from error
        raise


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM raise SystemExit in a `with` block, so that half-written files are removed.

    A second SIGTERM ends the process immediately. Only the main thread receives signals, so this
    function has no effect in other threads.
    """

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.exit(TERMINATED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _without_gin_calls(message: str) -> str:
    # If an exception passes through gin, gin appends the chain of configurables to its message.
    return message.partition("\n  In call to configurable ")[0]

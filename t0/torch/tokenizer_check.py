"""Loads a folder's tokenizer in a separate process, within limits of memory and time.

    check_within_limits(Path("/models/gpt2"))       # a UserError if that fails
    tokenizer = load_tokenizer(Path("/models/gpt2"))

The library that reads tokenizer.json ends the whole process if memory runs out, and even a small
file can make it use all memory or run forever. So a separate process first loads the tokenizer and
encodes a short text. If that works, the caller can load the tokenizer safely.
"""

import functools
import os
import resource
import signal
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

from t0.errors import UserError, install_command, short_reason

LIMIT_BYTES = 4 * 2**30  # more than the imports use; a vocabulary of 256,000 pieces needs 1 GiB
LIMIT_SECONDS = 300
_TEXT = f"{string.printable} It rains in Zürich, 北京 and São Paulo. 😀 "
_MOST_TOKENS_OF_A_BYTE = 20  # a byte needs at most one token; the rest is for special tokens


@functools.cache
def import_transformers() -> Any:
    """Returns the package transformers.

    Raises:
      UserError: if transformers or PyTorch is not installed.
    """
    try:
        import torch  # noqa: F401 (checked here, because transformers can be imported without it)
        import transformers as package
    except ImportError as error:
        raise UserError(
            f"{error.name or error} is not installed, and evaluating a model that is not a T5 "
            f"needs PyTorch and transformers: {install_command('hf')}"
        ) from error
    package.logging.set_verbosity_error()
    return package


def load_tokenizer(folder: Path) -> Any:
    """Returns the tokenizer of a folder, without running code from the folder."""
    return import_transformers().AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    )


def check_within_limits(folder: Path) -> None:
    """Loads a folder's tokenizer in a separate process, and encodes a short text with it.

    Raises:
      UserError: if the process fails, needs more than `LIMIT_BYTES` of memory, or takes longer than
        `LIMIT_SECONDS`.
    """
    command = [sys.executable, "-m", "t0.torch.tokenizer_check", str(folder)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            env={**os.environ, "RUST_BACKTRACE": "0"},
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        reason = f"it takes more than {LIMIT_SECONDS} s"
    else:
        if not done.returncode:
            return
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else ""
        if done.returncode < 0:
            reason = f"{reason} ({signal.Signals(-done.returncode).name})"
    raise UserError(
        f"{folder}: its tokenizer cannot be loaded within {LIMIT_BYTES // 2**30} GiB and "
        f"{LIMIT_SECONDS} s: {reason:.200}. Copy the tokenizer's files again"
    )


def _main(folder: str) -> int:
    import_transformers().AutoTokenizer  # noqa: B018 (imports it)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        count = len(load_tokenizer(Path(folder)).encode(_TEXT))
    except BaseException as error:  # noqa: BLE001 (a panic of Rust is no Exception)
        print(short_reason(error), file=sys.stderr)
        return 1
    if count > _MOST_TOKENS_OF_A_BYTE * len(_TEXT.encode()):
        print(f"it makes {count:,} tokens of a text of {len(_TEXT)} characters", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))

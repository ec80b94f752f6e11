"""Loads a folder's tokenizer in a separate process, within limits of memory and time.

    check_within_limits(Path("/models/gpt2"))       # a UserError if that fails

The library that reads tokenizer.json ends the whole process if memory runs out, and even a small
file can make it use all memory or run forever. So a separate process first loads the tokenizer and
encodes a short text. If that works, the caller can load the tokenizer safely.
"""

import os
import resource
import string
import subprocess
import sys
from pathlib import Path

from t0.child_processes import module_command
from t0.errors import UserError, short_reason

LIMIT_BYTES = 4 * 2**30  # more than the imports use; a vocabulary of 256,000 pieces needs 1 GiB
LIMIT_SECONDS = 300
_TEXT = f"{string.printable} It rains in Zürich, 北京 and São Paulo. 😀 "
_MOST_TOKENS_OF_A_BYTE = 20  # a byte needs at most one token; the rest is for special tokens


def check_within_limits(folder: Path) -> None:
    """Loads a folder's tokenizer in a separate process, and encodes a short text with it.

    Raises:
      UserError: if the process fails, needs more than `LIMIT_BYTES` of memory, or takes longer than
        `LIMIT_SECONDS`.
    """
    command = module_command("t0.torch.tokenizer_check", str(folder))
    environment = {**os.environ, "RUST_BACKTRACE": "0"}
    try:
        subprocess.run(
            command,
            capture_output=True,
            check=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.SubprocessError as error:
        lines = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        raise UserError(
            f"{folder}: its tokenizer cannot be loaded within {LIMIT_BYTES // 2**30} GiB and "
            f"{LIMIT_SECONDS} s: {lines[-1] if lines else error!s:.200}. Copy the tokenizer's "
            "files again"
        ) from error


def _main(folder: str) -> str | None:
    """Loads the tokenizer; returns the reason of a failure."""
    from transformers import AutoTokenizer

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        count = len(tokenizer.encode(_TEXT))
    except BaseException as error:  # noqa: BLE001 (a panic of Rust is no Exception)
        return short_reason(error)
    too_many = count > _MOST_TOKENS_OF_A_BYTE * len(_TEXT.encode())
    return f"it makes {count:,} tokens of {len(_TEXT)} characters" if too_many else None


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))

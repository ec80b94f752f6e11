"""Masks credentials in the command line and the configuration that a run saves.

mask_command(["run", "--hf_token=abc"])    # "run '--hf_token=***'"
save_command("/models/tiny", sys.argv)     # commands/command, commands/command.1, ...
mask_value("hub.api_key", "'hf_abc'")      # "'***'"; a number or a %MACRO is unchanged
mask_config(gin.operative_config_str)      # the text of the saved operative_config.gin
refuse_masked()                            # UserError: hub.api_key is '***' in the saved file
"""

import functools
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Sequence

from t0.errors import UserError
from t0.files import paths

MASK = "***"
# The pattern of names whose values are masked. It must not match the names tokens_per_batch,
# token_dropout_rate and stop_at_token.
_SECRET = (
    r"(?:(?:passwo?r?d|passphrase|secret|credential|(?:api|access|account|private)[_-]?key)\w*"
    r"|(?<!stop_at_)token|signature|authorization|\b(?:key|sig|auth|pwd))"
)
_SECRET_VALUE = re.compile(rf"({_SECRET}['\"]?\s*[=:]\s*)\S.*", re.I | re.S)
# The pattern of the tokens of hubs and cloud providers. Such a token is masked whatever the name of
# its parameter.
_SECRET_FORM = re.compile(
    r"\b(?:hf_\w{16,}|sk-[\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|xox[abprs]-[\w-]{8,}"
    r"|AKIA[0-9A-Z]{12,}|AIza[\w-]{16,}|ya29\.[\w-]{8,}|eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*)"
)
_SECRET_FLAG = re.compile(rf"--?[\w./-]*{_SECRET}$", re.I)
_LOGIN = re.compile(r"(://)[^/@\s]+@")
# The pattern of values that are never masked. A reference is not masked, because its value is in
# another binding. Numbers, None and booleans are not masked, because they reveal nothing.
_PLAIN = re.compile(r"[%@]|(?:[-+\d.][\w.+-]*|None|True|False)$")
_BINDING = re.compile(r"(?P<name>[\w./-]+)(?P<equals> = )(?P<value>.+)")
# The maximum line length that is set in gin. gin breaks longer lines, but a value can only be
# masked as a whole if it is on one line.
_ONE_LINE = 1_000_000


def mask_secrets(text: str) -> str:
    """Masks the password or key in a binding, a flag or an address."""
    return _SECRET_FORM.sub(MASK, _LOGIN.sub(r"\1***@", _SECRET_VALUE.sub(r"\1***", text)))


def mask_command(argv: Sequence[str]) -> str:
    """Returns a command line as text, with passwords, keys and similar values masked.

    >>> mask_command(["run", "--hf_token=abc", "--gin_param=tokens_per_batch = 4"])
    "run '--hf_token=***' '--gin_param=tokens_per_batch = 4'"
    """
    words = []
    for previous, word in zip(["", *argv], argv, strict=False):
        words.append(MASK if _SECRET_FLAG.match(previous) else mask_secrets(word))
    return shlex.join(words)


def save_command(model_dir: str, argv: Sequence[str]) -> None:
    """Writes a command line with masked credentials into a new file of a model directory.

    Only the owner can read the file, because masking cannot recognise every secret.

    Args:
      model_dir: the folder, local or gs://.
      argv: the words of the command line.

    Raises:
      UserError: the file cannot be written.
    """
    folder = posixpath.join(model_dir, "commands")
    opener = functools.partial(os.open, mode=0o600)
    try:
        paths.make_folder(folder)
        existing_names = set(paths.list_names(folder))
        names = ("command", *(f"command.{number}" for number in range(1, len(existing_names) + 1)))
        path = posixpath.join(folder, next(name for name in names if name not in existing_names))
        if paths.is_remote(path):
            with paths.opened(path, "wb") as file:
                file.write(f"{mask_command(argv)}\n".encode())
        else:
            with open(path, "x", encoding="utf-8", opener=opener) as file:
                file.write(mask_command(argv) + "\n")
    except OSError as error:
        raise UserError(f"the model directory {model_dir} cannot be written: {error}") from error


def mask_value(name: str, value: str) -> str:
    """Returns the value of a binding, or the mask in quotes if the value is a credential.

    >>> mask_value("hub.api_key", "'abc'"), mask_value("run.batch_size", "('tokens', 8)")
    ("'***'", "('tokens', 8)")
    """
    if _PLAIN.match(value):
        return value
    line = f"{name} = {value}"
    return value if mask_secrets(line) == line else repr(MASK)


def mask_config(write: Callable[..., str]) -> str:
    """Returns a configuration in gin's notation, with credentials masked.

    Args:
      write: `gin.operative_config_str` or `gin.config_str`.
    """
    lines = write(max_line_length=_ONE_LINE).splitlines()
    masked = [_mask_line(line) for line in lines]
    return write() if masked == lines else "\n".join(masked) + "\n"


def _mask_line(line: str) -> str:
    binding = _BINDING.fullmatch(line)
    if not binding:
        return line
    return binding["name"] + binding["equals"] + mask_value(binding["name"], binding["value"])


def refuse_masked() -> None:
    """Checks that no binding has the mask as its value.

    Raises:
      UserError: the value of a binding is the mask. A run saved its configuration with this
        credential masked, and the user has not set the credential again.
    """
    from t0.compat import gin_config  # imported here, because some engines mask values without gin

    masked = sorted(
        name if selector == "gin.macro" else f"{f'{name}/' if name else ''}{selector}.{parameter}"
        for (name, selector), values in gin_config._CONFIG.items()
        for parameter, value in values.items()
        if value == MASK
    )
    if masked:
        first = masked[0]
        raise UserError(
            f"{', '.join(masked)}: masked ('{MASK}') in the configuration that a run saved, "
            f"because it looked like a credential. Set it again: --gin_param=\"{first} = '...'\", "
            f'or --gin_param="{first} = None" if this run does not need it'
        )

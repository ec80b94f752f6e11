"""Masks credentials in a run's saved command line and configuration, and splits the configuration.

    mask_command(["run", "--hf_token=abc"])    # "run '--hf_token=***'"
    save_command("/models/tiny", sys.argv)     # commands/command, commands/command.1, ...
    mask_value("hub.api_key", "'hf_abc'")      # "'***'"; a number or a %MACRO is unchanged
    refuse_masked()                            # UserError: hub.api_key is '***' in the saved file
    operative_texts()                          # file name -> text, for the two operative configs

`operative_config.gin` contains the bindings to functions of T5 0.9.4 and Mesh TensorFlow, so that
T5's own `t5_mesh_transformer` and its Model API can read it. `operative_config.t0.gin`, next to it,
contains the bindings to functions that `t0` registers, and the bindings whose value is such a
function. Whenever this project reads a file named `operative_config.gin`, it then also reads
`operative_config.t0.gin` (`t0.config.gin_files.resolved_names`). Older versions of this project
wrote all bindings into `operative_config.gin`.
"""

import functools
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from t0.errors import UserError
from t0.files import paths

FILE, OURS = "operative_config.gin", "operative_config.t0.gin"
# The packages whose functions stock T5 does not know.
_PACKAGES = ("t0", "seqio_tasks")
_NOTE = f"# The settings of the package t0 are in {OURS}, next to this file.\n"
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
      write: a function of gin that returns a configuration of at most `max_line_length` characters
        per line, such as `gin.operative_config_str`.
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


def operative_texts() -> dict[str, str]:
    """Returns file name -> text, for gin's operative config with masked credentials.

    The text of `FILE` can be read by stock T5, and the text of `OURS` has this project's names.
    """
    from t0.compat import gin_config

    stock: dict[tuple[str, str], dict[str, Any]] = {}
    ours: dict[tuple[str, str], dict[str, Any]] = {}
    for key, parameters in gin_config._OPERATIVE_CONFIG.items():
        for name, value in parameters.items():
            if gin_config._is_literally_representable(value):
                is_ours = _is_ours(key[1]) or _refers_to_ours(value)
                (ours if is_ours else stock).setdefault(key, {})[name] = value
        if key not in ours:  # gin also lists a function that was called without bindings
            stock.setdefault(key, {})
    texts = {}
    for file, part in ((FILE, stock), (OURS, ours)):
        text = mask_config(functools.partial(gin_config._config_str, part))
        lines = text.splitlines(keepends=True)
        lines = [line for line in lines if _imports(line) in (None, file)]
        texts[file] = "".join(lines).strip() + "\n"
    return {**texts, FILE: _NOTE + texts[FILE]}


def _imports(line: str) -> str | None:
    """Returns the file to which an import belongs; None for other lines."""
    match = re.match(r"(?:import|from) ([\w.]+)", line)
    return match and (OURS if _is_ours(match[1]) else FILE)


def _is_ours(selector: str) -> bool:
    return selector.partition(".")[0] in _PACKAGES


def _refers_to_ours(value: Any) -> bool:
    """Returns whether a value is a function that stock T5 does not know, directly or by macros."""
    from t0.compat import gin_config

    for reference in gin_config.iterate_references([value]):
        name, selector = reference.config_key
        bindings = gin_config._CONFIG.get((name, selector), {}) if selector == "gin.macro" else {}
        if _is_ours(selector) or _refers_to_ours(bindings.get("value")):
            return True
    return False

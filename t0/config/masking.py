"""Credentials among gin's bindings: masked in what a run saves, and asked for when read back.

    masked_value("hub.api_key", "'hf_abc'")    # "'***'"; a number or a %MACRO stays as it is
    masked_config(gin.operative_config_str)    # the text of the saved operative_config.gin
    check_given()                              # UserError: hub.api_key is '***' in the saved file

What counts as a credential is what the record of a command line masks
(`t0.config.flags.without_secrets`).
"""

import re
from collections.abc import Callable

from t0.config.flags import without_secrets
from t0.errors import UserError

MASK = "***"
# References have their values in other bindings; numbers, None and truth values give nothing away.
_PLAIN = re.compile(r"[%@]|(?:[-+\d.][\w.+-]*|None|True|False)$")
_BINDING = re.compile(r"(?P<name>[\w./-]+)(?P<equals> = )(?P<value>.+)")
# gin breaks longer lines, and a value is masked as a whole.
_ONE_LINE = 1_000_000


def masked_value(name: str, value: str) -> str:
    """Returns a binding's value as gin writes it, or the mask in quotes for a credential.

    >>> masked_value("hub.api_key", "'abc'"), masked_value("run.batch_size", "('tokens', 8)")
    ("'***'", "('tokens', 8)")
    """
    if _PLAIN.match(value):
        return value
    line = f"{name} = {value}"
    return value if without_secrets(line) == line else repr(MASK)


def masked_config(write: Callable[..., str]) -> str:
    """Returns the text of a configuration, its credentials masked; else as gin writes it.

    Args:
      write: `gin.operative_config_str`, or `gin.config_str`.
    """
    lines = write(max_line_length=_ONE_LINE).splitlines()
    masked = [_masked_line(line) for line in lines]
    return write() if masked == lines else "\n".join(masked) + "\n"


def _masked_line(line: str) -> str:
    found = _BINDING.fullmatch(line)
    if not found:
        return line
    return found["name"] + found["equals"] + masked_value(found["name"], found["value"])


def check_given() -> None:
    """Checks that no binding has the mask for its value.

    Raises:
      UserError: if one has: the configuration is one that a run saved, and nothing has set the
        credential again.
    """
    from t0.compat import gin_config  # other engines mask values without gin

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
            f"because it looked like a credential. Give it again: --gin_param=\"{first} = '...'\", "
            f'or --gin_param="{first} = None" where this run does not need it'
        )

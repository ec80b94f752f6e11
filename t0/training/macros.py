"""gin's macros: what they stand for, and which must be set and are not.

    literal("run.batch_size")           # ("sequences_per_batch", 128), where gin holds %BATCH_SIZE
    check_required(parsed)              # UserError: needs TRAIN_STEPS (runs/pretrain.gin:25) ...

A gin file marks what its user must set by `NAME = %gin.REQUIRED`. Nothing is called here: a value
such as `@tpu_mesh_shape()` stays a reference.
"""

from collections.abc import Collection, Iterator
from typing import Any

from t0.compat import gin, gin_config
from t0.errors import UserError
from t0.training import config, origins


def resolved(value: Any) -> Any:
    """Returns a value with what its macros stand for.

    A macro that is required and unset stands for `gin.REQUIRED`; one that nothing defines stays.
    """
    if isinstance(value, gin_config.ConfigurableReference):
        name, selector = value.config_key
        if selector == "gin.constant":
            return gin_config._CONSTANTS[name]
        if selector == "gin.macro" and defined(name):
            return resolved(gin_config._CONFIG[name, selector]["value"])
        return value
    if isinstance(value, dict):
        return {key: resolved(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(resolved(part) for part in value)
    return value


def literal(name: str, default: Any = None) -> Any:
    """Returns what is bound to a macro such as "%MODEL_DIR" or a parameter such as "run.mode"."""
    try:
        return resolved(gin.query_parameter(name))
    except ValueError:
        return default


def defined(name: str) -> bool:
    """Returns whether something binds the macro."""
    return (name, "gin.macro") in gin_config._CONFIG


def within(value: Any) -> Iterator[str]:
    """Yields the macros that a value refers to, and those that these refer to."""
    for reference in gin_config.iterate_references([value]):
        name, selector = reference.config_key
        if selector == "gin.macro":
            yield name
            if defined(name):
                yield from within(gin_config._CONFIG[name, selector]["value"])


def check_required(
    parsed: config.Config, *, but: Collection[str] = (), undefined: bool = True
) -> None:
    """Checks that every macro that is read, or that this program asks for, has a value.

    What is marked as required and not needed is then None.

    Args:
      parsed: what `config.parse` returned.
      but: macros that may stay unset, as a flag says the same or nothing will ask for them.
      undefined: whether a macro that no file mentions, but reads, is missing as well.

    Raises:
      UserError: naming all that lack a value, each with the file and line that wants it.
    """
    read = config.macros_read()
    marked = {name for name in _defined() if literal(f"%{name}") is gin.REQUIRED}
    # Of a chain of macros only the end has to be set.
    ends = {name for name in marked if not marked & {*_referred(name)}}
    missing = ends & (read | config.READ_BY_CODE)
    if undefined:
        missing |= {name for name in read if not defined(name)}
    if missing - set(but):
        raise UserError(_needs(sorted(missing - set(but)), parsed))
    for name in ends:
        gin.bind_parameter(f"%{name}", None)


def _defined() -> list[str]:
    return [name for name, selector in gin_config._CONFIG if selector == "gin.macro"]


def _referred(name: str) -> list[str]:
    return list(within(gin_config._CONFIG[name, "gin.macro"]["value"]))


def _needs(missing: list[str], parsed: config.Config) -> str:
    places = origins.of(parsed).places
    each = [f"{name} ({_wanted_at(name, places)})" for name in missing]
    listed = " and ".join(filter(None, [", ".join(each[:-1]), each[-1]]))
    them = "it" if len(missing) == 1 else "them"
    how = " ".join(f"--gin.{name}=..." for name in missing)
    return f"the gin configuration needs {listed}, and nothing sets {them}: {how}"


def _wanted_at(name: str, places: dict[origins.Key, origins.Place]) -> str:
    marked = places.get((name, "gin.macro", "value"))
    if marked:
        return str(marked)
    readers = (
        places.get((scope, selector, parameter))
        for (scope, selector), parameters in gin_config._CONFIG.items()
        for parameter, value in parameters.items()
        if name in within(value)
    )
    return str(next(filter(None, readers), "no file"))

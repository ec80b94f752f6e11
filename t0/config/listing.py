"""Lists the configuration of a run as text: each value, and the place where the value was set.

    print(text(parsed, {"train_loop.seed": (3, "--seed")}))
    # BATCH_SIZE = 8  # the command line
    # run.batch_size = ('sequences_per_batch', 8)  # runs/eval.gin:57; BATCH_SIZE: the command line

The text is a valid gin file. Macros are replaced by their values. References such as `@name()`
remain unchanged, because no function is called. For the functions that the run calls, the text
also lists the parameters that have their default values.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from t0.compat import gin, gin_config
from t0.config.bindings import bound, macros_within, resolve_macros
from t0.config.parse import Config, Key, Origins, origins

# Parameter of the run -> (the value that the command gives it, the reason).
CommandBindings = Mapping[str, tuple[Any, str]]
# (scope, function) -> {parameter -> (its value, where it was set)}.
_Rows = dict[tuple[str, str], dict[str, tuple[Any, Any]]]

_RUN = "mesh_tensorflow.transformer.utils.run"
# Mode -> the functions that start a run. The bindings of these functions refer to the other
# functions that the run calls. In other modes, only `_RUN` starts a run.
_ROOTS = {"train": (_RUN, "t0.train_loop"), "infer": (_RUN, "t0.infer")}
# Parameters for which callers always pass a value, so that gin's bindings to them have no effect.
_CALLERS = frozenset(("model_dir", "tpu", "tpu_job_name", "tpu_zone", "gcp_project", "vocabulary"))
_CALLERS |= {"step", "total_train_steps", "learning_rate", "sequence_length", "dataset_split"}


def text(parsed: Config, command_bindings: CommandBindings) -> str:
    """Returns gin's configuration, with the bindings in `command_bindings`, as a gin file.

    Args:
      parsed: the result of `parse.parse`.
      command_bindings: the parameters that the command binds after parsing, which gin does not
        have yet.
    """
    locations = origins(parsed)
    overriding = {_parse_key(name): (value, why) for name, (value, why) in command_bindings.items()}
    lines = ["# Files, in the order read:"]
    lines += [f"#   {path}" for path in locations.files]
    lines += ["", *sorted({statement.format() for statement in gin_config._IMPORTS})]
    lines += ["", "# Macros"]
    lines += sorted(
        _format_line(name, bindings["value"], locations.of_macro(name), locations)
        for (name, selector), bindings in gin_config._CONFIG.items()
        if selector == "gin.macro"
    )
    for (scope, selector), rows in _rows_by_function(locations, overriding):
        name = "/".join(filter(None, (scope, gin_config._REGISTRY.minimal_selector(selector))))
        lines += ["", f"# {name}"]
        lines += [
            _format_line(f"{name}.{parameter}", *row, locations) for parameter, row in rows.items()
        ]
    return "\n".join(lines)


def _parse_key(name: str) -> Key:
    return gin_config.ParsedBindingKey.parse(name).scope_selector_arg


def _rows_by_function(
    locations: Origins, overriding: dict[Key, tuple[Any, str]]
) -> Iterator[tuple[tuple[str, str], dict[str, tuple[Any, Any]]]]:
    """Yields each (scope, function) with its rows: parameter -> (value, origin).

    The functions that the run calls come first, with their default values.
    """
    rows: _Rows = {
        (scope, selector): {
            parameter: (value, locations.locations.get((scope, selector, parameter), ""))
            for parameter, value in bindings.items()
        }
        for (scope, selector), bindings in gin_config._CONFIG.items()
        if selector != "gin.macro"
    }
    for (scope, selector, parameter), row in overriding.items():
        rows.setdefault((scope, selector), {})[parameter] = row
    functions_of_run = _find_reached_functions(rows)
    for key in functions_of_run:
        yield (
            key,
            rows.get(key, {})
            | {
                name: (value, "default")
                for name, value in _default_parameters(key[1]).items()
                if not any(name in rows.get((scope, key[1]), {}) for scope in ("", key[0]))
            },
        )
    for key in sorted(rows.keys() - set(functions_of_run)):
        yield key, dict(sorted(rows[key].items()))


def _find_reached_functions(rows: _Rows) -> list[tuple[str, str]]:
    """Returns the functions that the run calls.

    The functions that start the run come first, then the functions to which bindings refer.
    """
    roots = _ROOTS.get(bound("run.mode", "train", evaluate=False), (_RUN,))
    reached = [("", name) for name in roots]
    for key in reached:  # the loop appends to this list
        values = [resolve_macros(value) for value, _ in rows.get(key, {}).values()]
        for reference in gin_config.iterate_references(values):
            if reference.config_key not in reached:
                reached.append(reference.config_key)
    return [key for key in reached if key[1] not in ("gin.macro", "gin.constant")]


def _default_parameters(selector: str) -> dict[str, Any]:
    configurable = gin_config._REGISTRY[selector]
    hidden = {*_CALLERS, *(configurable.denylist or ())}
    return {
        name: parameter.default
        for name, parameter in inspect.signature(configurable.wrapped).parameters.items()
        if parameter.default is not parameter.empty and name not in hidden
    }


def _format_line(name: str, value: Any, location: Any, locations: Origins) -> str:
    final = resolve_macros(value)
    macros = (f"{macro}: {locations.of_macro(macro)}" for macro in macros_within(value))
    source = "; ".join([str(location), *macros])
    if final is gin.REQUIRED:
        return f"{name} = %gin.REQUIRED  # {source}"
    if _is_readable_by_gin(final):
        return f"{name} = {final!r}  # {source}"
    # A value that gin cannot parse is written as a comment instead of a binding.
    return f"# {name}: {getattr(final, '__qualname__', final)}  # {source}"


def _is_readable_by_gin(value: Any) -> bool:
    references = list(gin_config.iterate_references([value]))
    return bool(references) or gin_config._is_literally_representable(value)

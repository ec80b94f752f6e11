"""Lists the configuration of a run as text: each value, and the place where the value was set.

    print(text(parsed, {"train_loop.seed": (3, "--seed")}))
    # BATCH_SIZE = 8  # the command line
    # run.batch_size = ('sequences_per_batch', 8)  # runs/eval.gin:57; BATCH_SIZE: the command line

The text is a valid gin file. Macros are replaced by their values. References such as `@name()`
remain unchanged, because no function is called. For a function that is configured outside of
scopes, the text also lists the parameters that have their default values.
"""

from collections.abc import Mapping
from typing import Any

from t0.compat import gin, gin_config
from t0.config.bindings import macros_within, resolve_macros
from t0.config.parse import COMMAND_LINE, Config, Key, origins

# Parameter of the run -> (the value that the command gives it, the reason).
CommandBindings = Mapping[str, tuple[Any, str]]


def text(parsed: Config, command_bindings: CommandBindings) -> str:
    """Returns gin's configuration, with the bindings in `command_bindings`, as a gin file.

    Args:
      parsed: the result of `parse.parse`.
      command_bindings: the parameters that the command binds after parsing, which gin does not
        have yet.
    """
    locations = origins(parsed)
    values = {
        (scope, selector, parameter): value
        for (scope, selector), bindings in gin_config._CONFIG.items()
        for parameter, value in bindings.items()
    }
    for name, (value, reason) in command_bindings.items():
        key = gin_config.ParsedBindingKey.parse(name).scope_selector_arg
        values[key], locations[key] = value, reason
    for selector in {selector for scope, selector, _ in values if not scope}:
        for parameter, value in _default_parameters(selector).items():
            key = ("", selector, parameter)
            locations.setdefault(key, "default")
            values.setdefault(key, value)
    macros = sorted(key for key in values if key[1] == "gin.macro")
    lines = ["# Files, in the order read:"]
    files = dict.fromkeys(statement.location.filename for statement in parsed.statements)
    lines += [f"#   {path}" for path in files if path]
    lines += ["", *sorted({statement.format() for statement in gin_config._IMPORTS})]
    lines += ["", "# Macros"]
    lines += [_format_line(key[0], values[key], key, locations) for key in macros]
    previous = ""
    for key in sorted(values.keys() - set(macros)):
        scope, selector, parameter = key
        function = "/".join(filter(None, (scope, gin_config._REGISTRY.minimal_selector(selector))))
        lines += ["", f"# {function}"] if function != previous else []
        lines.append(_format_line(f"{function}.{parameter}", values[key], key, locations))
        previous = function
    return "\n".join(lines)


def _default_parameters(selector: str) -> dict[str, Any]:
    function = gin_config._REGISTRY[selector]
    return gin_config._get_default_configurable_parameter_values(
        function.wrapped, function.allowlist, function.denylist
    )


def _format_line(name: str, value: Any, key: Key, locations: Mapping[Key, str]) -> str:
    final = resolve_macros(value)
    sources = [locations.get(key, COMMAND_LINE)]
    for macro in macros_within(value):
        origin = locations.get((macro, "gin.macro", "value"), COMMAND_LINE)
        sources.append(f"{macro}: {origin}")
    source = "; ".join(sources)
    if final is gin.REQUIRED:
        return f"{name} = %gin.REQUIRED  # {source}"
    if _is_readable_by_gin(final):
        return f"{name} = {final!r}  # {source}"
    # A value that gin cannot parse is written as a comment instead of a binding.
    return f"# {name}: {getattr(final, '__qualname__', final)}  # {source}"


def _is_readable_by_gin(value: Any) -> bool:
    references = list(gin_config.iterate_references([value]))
    return bool(references) or gin_config._is_literally_representable(value)

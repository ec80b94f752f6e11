"""Finds the value that gin has bound to a parameter or macro, and can evaluate this value.

    bound("run.mode", "train")                      # "score_eval"
    bound("%MIXTURE_NAME")                          # a macro
    bound("run.batch_size", evaluate=False)         # ("sequences_per_batch", 128), not %BATCH_SIZE

With `evaluate=False`, no function is called and the operative config records nothing. Macros are
replaced by their values, but a value such as `@tpu_mesh_shape()` remains a reference.
"""

import copy
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator
from typing import Any

from t0.compat import gin, gin_config
from t0.errors import UserError

_REQUIRED = re.compile(r"Required bindings for `([^`]+)` not provided in config: \['([^']+)'")
_UNSET_MACRO = re.compile(r"macro\(\) missing .* in scope '([^']+)'")


def bound(name: str, default: Any = None, *, evaluate: bool = True) -> Any:
    """Returns the value bound to a parameter such as "run.mode", or to a macro such as "%NAME".

    Args:
      name: the name of the parameter or macro.
      default: the result if no value is bound to `name`.
      evaluate: whether to call the functions to which the value refers, and to record macros as
        used. If False, the result is the value with its macros replaced (`resolve_macros`).

    Raises:
      UserError: the value is a macro that has no value.
    """
    try:
        value = gin.query_parameter(name)
    except ValueError:
        return default
    if not evaluate:
        return resolve_macros(value)
    try:
        return copy.deepcopy(value)  # gin evaluates references when it copies them
    except (TypeError, RuntimeError) as error:
        unset = explain_unset(error)
        if unset:
            raise UserError(unset) from error
        raise


def explain_unset(error: BaseException) -> str | None:
    """Describes an error about a required parameter or macro that has no value.

    Returns None for other errors.
    """
    text = " ".join(str(error).split())
    unset = _REQUIRED.search(text) or _UNSET_MACRO.search(text)
    if not unset:
        return None
    setting = ".".join(unset.groups())
    return (
        f"the gin configuration needs {setting}, and nothing sets it: --gin_param='{setting} = ...'"
    )


def read_arguments(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Returns all arguments that a configurable would get from a caller and gin, without a call.

    The operative config is the same as after a call.

    Args:
      function: a function that is registered with gin, such as Mesh TensorFlow's `run`.
      **arguments: the caller's arguments.

    Returns:
      parameter -> value, including the defaults of `function`.

    Raises:
      RuntimeError: a required parameter has no value (raised by gin).
      TypeError: the function has no such parameter.
    """
    configurable = gin_config._inverse_lookup(function, allow_decorators=True)
    signature = inspect.signature(configurable.wrapped)

    def collect(**values: Any) -> dict[str, Any]:
        call = signature.bind(**values)
        call.apply_defaults()
        return call.arguments

    names = (configurable.name, configurable.selector)
    lists = (configurable.allowlist, configurable.denylist)
    wrapper = gin_config._make_gin_wrapper(collect, configurable.wrapped, *names, *lists)
    return wrapper(**arguments)


def registered(module: str) -> dict[str, Any]:
    """Returns name -> function or class that is registered with gin in a module such as "t0".

    Each of them has the attributes `wrapped` (the function or class) and `denylist` (the parameters that
    its caller passes, so that gin must not bind them).
    """
    prefix = f"{module}."
    return {
        selector.removeprefix(prefix): configurable
        for selector, configurable in gin_config._REGISTRY.items()
        if selector.startswith(prefix)
    }


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the annotations of the parameters of a function or of a class."""
    called = function.__init__ if inspect.isclass(function) else function
    return typing.get_type_hints(called, include_extras=True)


def typed_bindings(module: str) -> Iterator[tuple[str, Any, Any]]:
    """Yields the plain values that gin binds to the functions and classes of a gin module.

    Yields:
      (parameter, such as "train_loop.seed"; its annotation; its value, with macros replaced). A
      value that refers to a function is left out, because gin calls the function later.
    """
    ours = registered(module)
    for (_, selector), values in gin_config._CONFIG.items():
        function = selector.removeprefix(f"{module}.")
        kinds = annotations_of(ours[function].wrapped) if function in ours else {}
        for name, value in values.items():
            plain = resolve_macros(value)
            refers = plain is gin.REQUIRED or any(gin_config.iterate_references([plain]))
            if name in kinds and not refers:
                yield f"{function}.{name}", kinds[name], plain


def resolve_macros(value: Any) -> Any:
    """Replaces the macros in a value with their values.

    A required macro that is not set becomes `gin.REQUIRED`. An undefined macro remains a reference.
    """
    if isinstance(value, gin_config.ConfigurableReference):
        name, selector = value.config_key
        if selector == "gin.constant":
            return gin_config._CONSTANTS[name]
        if selector == "gin.macro" and macro_defined(name):
            return resolve_macros(gin_config._CONFIG[name, selector]["value"])
        return value
    if isinstance(value, dict):
        return {key: resolve_macros(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(resolve_macros(item) for item in value)
    return value


def is_configured(selector: str) -> bool:
    """Returns whether any parameter of a function, such as "t0.adapter", is bound."""
    return bool(gin_config._CONFIG.get(("", selector)))


def macro_defined(name: str) -> bool:
    """Returns whether a macro is bound."""
    return (name, "gin.macro") in gin_config._CONFIG


def macros_within(value: Any) -> Iterator[str]:
    """Yields the names of the macros to which a value refers, directly or through other macros."""
    for reference in gin_config.iterate_references([value]):
        name, selector = reference.config_key
        if selector == "gin.macro":
            yield name
            if macro_defined(name):
                yield from macros_within(gin_config._CONFIG[name, selector]["value"])


def macro_names() -> list[str]:
    """Returns the names of all bound macros."""
    return [name for name, selector in gin_config._CONFIG if selector == "gin.macro"]


def macros_read() -> set[str]:
    """Returns the names of all macros to which bindings refer."""
    references = gin_config.iterate_references(gin_config._CONFIG)
    return {"/".join(r.scopes) for r in references if r.configurable.selector == "gin.macro"}


def changed_parameters(selector: str, *, read: Collection[str] = ()) -> list[str]:
    """Returns the parameters of a function that gin binds to other values than their defaults.

    Args:
      selector: gin's name of the function, such as "Unitransformer.sample_autoregressive".
      read: parameters to leave out, because the caller reads them.

    Returns:
      texts such as "Unitransformer.sample_autoregressive.never_end = True".
    """
    full = gin_config._REGISTRY.get_match(selector)
    signature = inspect.signature(full.wrapped).parameters
    bindings = {
        name: value
        for (_, bound_selector), values in gin_config._CONFIG.items()
        if bound_selector == full.selector
        for name, value in values.items()
    }
    return [
        f"{selector}.{name} = {value!r}"
        for name, value in sorted(bindings.items())
        if name not in read and name in signature and value != signature[name].default
    ]

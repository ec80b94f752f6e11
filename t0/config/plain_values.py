"""Reads values that gin has bound as plain data, as in JSON.

    parameters_of("mesh_tensorflow.optimize.AdafactorOptimizer")   # {"decay_rate": None, ...}
    to_plain(gin_reference)                                     # {"selector": ..., "parameters": ...}

Functions and classes become gin's selectors. Credentials are masked, as in all files of a run.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from t0.compat import gin_config, mtf
from t0.config import saved_config
from t0.config.bindings import resolve_macros


def parameters_of(selector: str, scope: str = "") -> dict[str, Any]:
    """Returns name -> value of a configurable's parameters: gin's bindings, else the defaults."""
    scopes = scope.split("/") if scope else []
    configurable = gin_config._REGISTRY[selector]
    parameters = {
        name: parameter.default
        for name, parameter in inspect.signature(configurable.wrapped).parameters.items()
        if parameter.default is not parameter.empty
    }
    for count in range(len(scopes) + 1):
        parameters |= gin_config._CONFIG.get(("/".join(scopes[:count]), selector), {})
    return {name: to_plain(resolve_macros(value), name) for name, value in parameters.items()}


def to_plain(value: Any, name: str = "") -> Any:
    """Converts a parameter's value to JSON types. A function or class becomes its selector in gin.

    Credentials are masked, as in all files that a run writes.
    """
    if isinstance(value, str):
        written = repr(value)
        return value if saved_config.mask_value(name, written) == written else saved_config.MASK
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(item): to_plain(item_value, str(item)) for item, item_value in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, mtf.Dimension):
        return [to_plain(item) for item in value]
    if isinstance(value, gin_config.ConfigurableReference):
        scope, selector = value.config_key
        return {"selector": selector, "parameters": parameters_of(selector, scope)}
    if isinstance(value, mtf.Dimension):
        return value.size
    if isinstance(value, functools.partial):
        return {"selector": selector_of(value.func), "parameters": to_plain(value.keywords)}
    return selector_of(value) if callable(value) else str(value)


def selector_of(function: Callable[..., Any]) -> str:
    """Returns gin's selector of a function or class, or its Python name if gin has no selector."""
    configurable = gin_config._inverse_lookup(function, allow_decorators=True)
    if configurable is not None:
        return configurable.selector
    named = inspect.unwrap(function)
    return f"{named.__module__}.{getattr(named, '__qualname__', type(named).__qualname__)}"

"""The optimizers and learning rate schedules that gin knows here, and a check that one is bound.

    schedules()                              # ["constant_learning_rate", "cosine_with_warmup", ...]
    check_not_text("optimizer", "adam")      # UserError: wanted the optimizer itself ...

Whatever is registered with gin and looks like one is one: an optimizer is a class of Mesh
TensorFlow's `Optimizer`, a schedule a function of `step` and `total_train_steps`.
"""

import inspect
from collections.abc import Callable
from typing import Any

from t0.compat import gin_config, optimize
from t0.errors import UserError, nearest
from t0.training import optimizers as _ours  # noqa: F401 (registers them)
from t0.training import schedules as _more  # noqa: F401


def optimizers() -> list[str]:
    """Returns the names that `run.optimizer` can be bound to, as @NAME."""
    return _named(lambda found: inspect.isclass(found) and issubclass(found, optimize.Optimizer))


def schedules() -> list[str]:
    """Returns the names that `run.learning_rate_schedule` can be bound to, as @NAME."""
    return _named(
        lambda found: (
            inspect.isfunction(found)
            and {"step", "total_train_steps"} <= inspect.signature(found).parameters.keys()
        )
    )


# Parameter of `run` -> what it takes, and the names there are.
KINDS = {"optimizer": ("optimizer", optimizers), "learning_rate_schedule": ("schedule", schedules)}


def _named(fits: Callable[[Any], bool]) -> list[str]:
    registry = gin_config._REGISTRY
    found = [selector for selector, item in registry.items() if fits(item.wrapped)]
    return sorted(map(registry.minimal_selector, found))


def listed(parameter: str) -> str:
    """Returns a sentence that lists what `run.optimizer` or `run.learning_rate_schedule` can be.

    Args:
      parameter: the part behind the dot; for any other the sentence is empty.
    """
    if parameter not in KINDS:
        return ""
    kind, names = KINDS[parameter]
    return f" The {kind}s are: {', '.join('@' + name for name in names())}"


def check_not_text(parameter: str, value: Any) -> None:
    """Checks that what `run` is bound to is an optimizer or a schedule, not its name as text.

    Args:
      parameter: "optimizer" or "learning_rate_schedule".
      value: what gin has bound to it.

    Raises:
      UserError: with the nearest name and the list.
    """
    if not isinstance(value, str):
        return
    kind, names = KINDS[parameter]
    known = {name.lower(): name for name in names()}
    close = nearest(value.lower().lstrip("@"), known)
    hint = f" Did you mean @{known[close[0]]}, without quotes?" if close else ""
    raise UserError(
        f"run.{parameter} is the text {value!r}; wanted the {kind} itself, as @NAME.{hint}"
        f"{listed(parameter)}"
    )

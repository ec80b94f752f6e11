"""Reads the user's mixtures from `mixtures.yaml`, or from a value of the same form in gin.

    reviews_and_t0:
      temperature: 2.0                                  # for all members
      tasks:
        - sciq_Multiple_Choice                          # a name, or a regular expression
        - {task: 'reviews_.*', exclude: '.*_score_eval', cap: 3000}
        - {task: super_glue_copa_exercise, cap: 200, scale: 0.5}
        - {mixture: t0_train_one_og_prompt, rate: 500}  # a mixture inside this one

    find_own_mixtures([Path("/data/mine")])             # reads /data/mine/mixtures.yaml

| key of a member | value |
|---|---|
| `task` | a regular expression. It selects the tasks whose whole name it matches |
| `mixture` | the name of a mixture. Its `rate` must be a number |
| `exclude` | a regular expression. Tasks whose whole name it matches are left out |
| `rate` | a number, `examples` (default: the number of training examples) or `t0` (T0's rule) |
| `scale` | a factor for the rate (default: 1) |
| `cap` | the largest rate, after `scale` (default: 500,000 for `examples`, otherwise none) |
| `temperature` | T in rate^(1/T), after `cap` (default: 1) |

Each key except `task` and `mixture` may also be next to `tasks`. It then applies to all members
that do not have the key.

A mixture may also define few-shot tasks, which its members and other mixtures can select:

    few_shot: {of: ['super_glue_rte_.*'], k: 4, budget: 1920}

This makes TASK_4shot and TASK_4shot_score_eval of each prompted task TASK that an expression in `of`
matches. The other keys are those of `t0.prompts.few_shot.FewShot`.
"""

import dataclasses
import re
import reprlib
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from t0.errors import UserError, unknown_name
from t0.files.untrusted import SAFE_LOADER, read_yaml
from t0.prompts.few_shot import FewShot, read_few_shot

MIXTURES = "mixtures.yaml"
RULES_OF_RATES = ("examples", "t0")
_MOST_EXPRESSIONS, _LONGEST_EXPRESSION = 10_000, 1_000
_USUAL_LENGTH = 1024  # of T0's inputs, in tokens


@dataclasses.dataclass(frozen=True)
class MixtureMember:
    """An entry in the list `tasks` of a mixture.

    Attributes:
      task: a regular expression for names of tasks; None if the member is a mixture.
      mixture: the name of a mixture; None if the member is a task.
      exclude: a regular expression for names of tasks that are left out; None if there are none.
      rate: the rate as a number, or the name of the rule that determines it.
      scale: the factor of the rate.
      cap: the largest rate after scaling; None for the rule's own limit.
      temperature: T in rate^(1/T).
    """

    task: str | None = None
    mixture: str | None = None
    exclude: str | None = None
    rate: str | float = "examples"
    scale: float = 1.0
    cap: float | None = None
    temperature: float = 1.0


@dataclasses.dataclass(frozen=True)
class FewShotMembers:
    """The few-shot tasks that a mixture defines.

    Attributes:
      of: regular expressions for names of the zero-shot tasks.
      settings: how exemplars are drawn and joined.
    """

    of: tuple[str, ...]
    settings: FewShot


@dataclasses.dataclass(frozen=True)
class OwnMixture:
    """A mixture that the user defines.

    Attributes:
      name: the mixture's name.
      members: the tasks and mixtures in it.
      path: the file that defines the mixture, or the name of the gin parameter.
      few_shot: the few-shot tasks that the mixture defines; None if there are none.
    """

    name: str
    members: tuple[MixtureMember, ...]
    path: Path | str
    few_shot: FewShotMembers | None = None


def find_own_mixtures(dirs: list[Path]) -> list[OwnMixture]:
    """Reads the mixtures that the `mixtures.yaml` in each data folder defines.

    Raises:
      UserError: a file is malformed, or two mixtures have the same name.
    """
    mixtures: dict[str, OwnMixture] = {}
    for path in (data_dir / MIXTURES for data_dir in dirs):
        if not path.is_file():
            continue
        content = read_yaml(path, SAFE_LOADER, kind="file of mixtures", count_values=True)
        for mixture in read_mixtures(content, path):
            if mixture.name in mixtures:
                other = mixtures[mixture.name].path
                raise UserError(
                    f"{path}: the mixture '{mixture.name}' is also in {other}. Rename one."
                )
            mixtures[mixture.name] = mixture
    return list(mixtures.values())


def read_mixtures(content: object, path: Path | str) -> list[OwnMixture]:
    """Checks plain data, as in YAML, and returns the mixtures in it.

    Args:
      content: name of a mixture -> its definition.
      path: the source of the data, for messages.

    Raises:
      UserError: the data has another form, or a value is out of range.
    """
    if not isinstance(content, Mapping):
        raise UserError(f"{path}: expected {_FORM}, got {type(content).__name__}.")
    return [_read_mixture(path, name, entry) for name, entry in content.items()]


def _read_mixture(path: Path | str, name: object, entry: object) -> OwnMixture:
    where = f"{path}: mixture '{name}'"
    if not isinstance(name, str) or not isinstance(entry, Mapping):
        raise UserError(f"{where}: expected {_FORM}, got {reprlib.repr(entry)}.")
    _check_keys(where, entry, ("tasks", "few_shot", *_SHARED))
    defaults = {key: value for key, value in entry.items() if key not in ("tasks", "few_shot")}
    _check_values(where, defaults)
    tasks = entry.get("tasks")
    if not isinstance(tasks, list | tuple) or not tasks or len(tasks) > _MOST_EXPRESSIONS:
        size = f"{len(tasks):,} members" if isinstance(tasks, list) else reprlib.repr(tasks)
        raise UserError(
            f"{where}: the key 'tasks' must be a list of regular expressions for task names, at "
            f"most {_MOST_EXPRESSIONS:,} of at most {_LONGEST_EXPRESSION:,} characters, got {size}."
        )
    members = tuple(_read_member(where, defaults, task) for task in tasks)
    few_shot = _read_few_shot(where, entry["few_shot"]) if "few_shot" in entry else None
    return OwnMixture(name, members, path, few_shot)


def _read_few_shot(where: str, entry: object) -> FewShotMembers:
    of = entry.get("of") if isinstance(entry, Mapping) else None
    is_list = isinstance(of, list | tuple) and 0 < len(of) <= _MOST_EXPRESSIONS
    problem = next(filter(None, map(_find_problem, of)), "") if is_list else ""
    if not is_list or problem or "k" not in entry:
        raise UserError(
            f"{where}: the key 'few_shot' must be like {{of: ['super_glue_rte_.*'], k: 4}}, where "
            f"'of' is a list of regular expressions for task names, got {reprlib.repr(entry)}"
            f"{problem}."
        )
    options = {str(key): value for key, value in entry.items() if key not in ("of", "k")}
    try:
        settings = read_few_shot(entry["k"], options, "few_shot")
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if settings.length is None:  # FLAN's budget, 1,920, has FLAN's length, 2,048
        length = max(_USUAL_LENGTH, 1 << ((settings.budget or 1) - 1).bit_length())
        settings = dataclasses.replace(settings, length=length)
    return FewShotMembers(tuple(of), settings)


def _read_member(where: str, defaults: Mapping[str, Any], entry: object) -> MixtureMember:
    if isinstance(entry, str):
        entry = {"task": entry}
    if not isinstance(entry, Mapping) or ("task" in entry) == ("mixture" in entry):
        raise UserError(
            f"{where}: the key 'tasks' must be a list of regular expressions for task names, and "
            f"of members such as {{task: 'reviews_.*', cap: 3000}} and {{mixture: t0_train, rate: "
            f"500}}, got {reprlib.repr(entry)}."
        )
    _check_keys(where, entry, ("task", "mixture", *_SHARED))
    _check_values(where, entry)
    member = MixtureMember(**{**defaults, **entry})
    if member.mixture is None:
        return member
    title = f"the member {{mixture: {member.mixture:.80}}}"
    if "exclude" in entry:
        raise UserError(
            f"{where}: 'exclude' is for tasks, and {title} keeps all of its tasks. Remove the key."
        )
    if isinstance(member.rate, str):
        raise UserError(
            f"{where}: {title} has the rate '{member.rate}', and the rate of a mixture must be a "
            "number, which its tasks share. Add 'rate: 500'."
        )
    return dataclasses.replace(member, exclude=None)


def _check_keys(where: str, entry: Mapping[Any, Any], keys: Collection[str]) -> None:
    for key in entry:
        if key not in keys:
            error = unknown_name("key", f"{key!s:.80}", keys, "Keys: " + ", ".join(keys) + ".")
            raise UserError(f"{where}: {error}")


def _check_values(where: str, entry: Mapping[str, Any]) -> None:
    for key, value in entry.items():
        expected = _EXPECTED[key]
        problem = ""
        if key == "mixture":
            is_valid = isinstance(value, str)
        elif key in ("task", "exclude"):
            # A wrong expression in the list is a mistake in 'tasks'.
            key = "tasks" if key == "task" else key
            problem = _find_problem(value)
            is_valid = not problem
        else:
            is_valid = _is_above_zero(value) or (
                key == "rate" and isinstance(value, str) and value in RULES_OF_RATES
            )
        if not is_valid:
            raise UserError(
                f"{where}: the key '{key}' must be {expected}, got {_shorten(value)}{problem}."
            )


def _find_problem(expression: object) -> str:
    """Returns the reason why a value cannot be a regular expression; "" if it can be one."""
    if not isinstance(expression, str):
        return " (expected a text)"
    if len(expression) > _LONGEST_EXPRESSION:
        return f" (expected at most {_MOST_EXPRESSIONS:,} of at most {_LONGEST_EXPRESSION:,} characters)"
    try:
        re.compile(expression)
    except (re.error, RecursionError, OverflowError) as error:
        return f" ({error})"
    return ""


def _is_above_zero(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= sys.float_info.max


def _shorten(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # Python does not convert an integer of more than 4,300 digits
        return "a number with thousands of digits"


_EXPECTED = {
    "task": "a list of regular expressions for task names",
    "mixture": "the name of a mixture",
    "exclude": "a regular expression for task names",
    "rate": "'examples', 't0' or a number above 0",
    "cap": "a number above 0",
    "scale": "a number above 0",
    "temperature": "a number above 0",
}
_SHARED = ("exclude", "rate", "cap", "scale", "temperature")
_FORM = "mixture names with {tasks: [regular expressions], rate: examples or a number}"

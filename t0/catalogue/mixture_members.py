"""Selects the members of the user's mixtures, with their rates.

resolve_mixtures(find_own_mixtures(dirs), tasks, mixtures={"t0_train": [...]})
# {"mine": [("reviews_is_it_good", MixingRate(...)), ("t0_train", 500.0)]}
"""

import itertools
import math
import re
import reprlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from t0.catalogue.entries import catalogue_entries, own_entries
from t0.catalogue.exemplars import check_few_shot
from t0.catalogue.mixing_rates import (
    MAX_EXAMPLES_PER_DATASET,
    MixingRate,
    Mixtures,
    Rate,
    TrainingRate,
    count_training_examples,
)
from t0.catalogue.prompted_task import SCORE_EVAL, FewShotForm, PromptedRows, few_shot_name
from t0.errors import UserError, unknown_name
from t0.files.untrusted import match_names
from t0.sources import OwnMixture
from t0.sources.mixture_files import MixtureMember

# The time for matching all expressions of a user's mixture.
_MATCHING_SECONDS = 10
# The limits of mixtures inside mixtures. Each path to a mixture counts.
_DEEPEST, _MOST_MIXTURES = 20, 1_000
_FEW_SHOT = r"_\d+shot(_[a-z]+)?$"  # the end of the name of a few-shot task


def resolve_mixtures(
    own: Sequence[OwnMixture], tasks: Collection[str], mixtures: Mixtures
) -> dict[str, list[tuple[str, Rate]]]:
    """Returns the members of the user's mixtures. A mixture follows the mixtures inside it.

    Args:
      own: the user's mixtures.
      tasks: the names of all tasks.
      mixtures: the members of all other mixtures.

    Raises:
      UserError: a mixture's name is taken, a mixture contains itself, a member does not exist, or
        two members select the same task.
    """
    own_by_name = {mixture.name: mixture for mixture in own}
    for mixture in own:
        if mixture.name in mixtures or mixture.name in tasks:
            raise UserError(
                f"{mixture.path}: a task or mixture '{mixture.name}' exists already; rename yours."
            )
    resolved: dict[str, list[tuple[str, Rate]]] = {}
    counts: dict[str, int] = {}  # mixture -> 1 + the number of mixtures in it

    def visit(name: str, outer: tuple[str, ...]) -> int:
        mixture = own_by_name.get(name)
        if mixture is None or name in resolved:
            return counts.get(name, 1)
        if name in outer:
            circle = " > ".join((*outer[outer.index(name) :], name))
            raise UserError(
                f"{mixture.path}: the mixture '{name}' contains itself: {circle:.400}. Remove one of "
                "these members."
            )
        inner = [member.mixture for member in mixture.members if member.mixture is not None]
        members = own_mixture_tasks(mixture, tasks, {*mixtures, *own_by_name})
        if len(outer) < _DEEPEST:
            counts[name] = 1 + sum(visit(name_, (*outer, name)) for name_ in inner)
        if counts.get(name, math.inf) > _MOST_MIXTURES:
            raise UserError(
                f"{mixture.path}: the mixture '{name}' contains too many mixtures. Expected at most "
                f"{_MOST_MIXTURES:,}, and at most {_DEEPEST} inside each other."
            )
        resolved[name] = members
        return counts[name]

    for mixture in own:
        visit(mixture.name, ())
    return resolved


def own_mixture_tasks(
    mixture: OwnMixture, names: Collection[str], mixtures: Collection[str] = ()
) -> list[tuple[str, Rate]]:
    """Returns (name, rate) for each task and each mixture that a user's mixture selects.

    Args:
      mixture: the mixture, as defined in a `mixtures.yaml`.
      names: the names of the registered tasks.
      mixtures: the names of all mixtures.

    Raises:
      UserError: a regular expression of the mixture matches no task or takes too long, or two
        members select the same task with different rates.
    """
    chosen: dict[str, tuple[MixtureMember, Rate]] = {}
    ends = time.monotonic() + _MATCHING_SECONDS
    names = dict.fromkeys(names)  # in their order, with a fast search
    needs_rule = any(member.rate == "t0" for member in mixture.members)
    training_rates = _training_rates() if needs_rule else {}
    for member in dict.fromkeys(mixture.members):
        if member.mixture is None:
            selected = _select_tasks(mixture, member, names, mixtures, ends)
        elif member.mixture in mixtures:
            selected = [member.mixture]
        else:
            raise unknown_name("mixture", member.mixture, mixtures, f"It is in {mixture.path}.")
        for name in selected:
            rate = _rate_of(mixture, member, name, training_rates)
            first, first_rate = chosen.setdefault(name, (member, rate))
            if rate != first_rate:
                raise UserError(
                    f"{mixture.path}: mixture '{mixture.name}': '{name}' has two rates, because the "
                    f"members {_title(first)} and {_title(member)} both select it. Add the key "
                    "'exclude' to one of them, or remove one."
                )
    return [(name, rate) for name, (_, rate) in chosen.items()]


def few_shot_forms(
    mixtures: Sequence[OwnMixture], tasks: Mapping[str, PromptedRows]
) -> dict[str, tuple[str, FewShotForm]]:
    """Returns name of a plain few-shot task -> (name of its zero-shot task, its exemplars).

    Args:
      mixtures: the user's mixtures.
      tasks: name -> task, for all prompted zero-shot tasks.

    Raises:
      UserError: an expression matches no task, `check_few_shot` refuses a task, or two tasks of the
        same name would differ.
    """

    def data(name: str) -> tuple[Any, ...]:
        return tasks[name].dataset, tasks[name].subset, tasks[name].split_mapping

    forms: dict[str, tuple[str, FewShotForm]] = {}
    ends = time.monotonic() + _MATCHING_SECONDS
    for mixture in mixtures:
        few_shot = mixture.few_shot
        members = [MixtureMember(expression) for expression in few_shot.of] if few_shot else []
        selected = dict.fromkeys(
            name.removesuffix(SCORE_EVAL)
            for member in members
            for name in _select_tasks(mixture, member, tasks, (), ends)
        )
        for name in selected:
            try:
                check_few_shot(tasks[name], few_shot.settings)
            except UserError as error:
                where = f"{mixture.path}: mixture '{mixture.name}'"
                raise UserError(f"{where}: few_shot: {error}") from None
            templates = ()
            if not few_shot.settings.same_template:
                siblings = [tasks[other] for other in selected if data(other) == data(name)]
                templates = tuple((task.template, task.seed_name) for task in siblings)
            form = name, FewShotForm(few_shot.settings, templates)
            new = few_shot_name(name, few_shot.settings)
            if new in tasks or forms.setdefault(new, form) != form:
                raise UserError(
                    f"{mixture.path}: mixture '{mixture.name}': a task '{new}' exists already, with "
                    "other settings. Give both the same settings, or another k or suffix."
                )
    return forms


def _title(member: MixtureMember) -> str:
    return reprlib.repr(member.task or member.mixture)


def _training_rates() -> dict[str, TrainingRate]:
    entries = itertools.chain(catalogue_entries(), own_entries())
    return {entry.task.name: TrainingRate(entry) for entry in entries}


def _select_tasks(
    mixture: OwnMixture,
    member: MixtureMember,
    names: Collection[str],
    mixtures: Collection[str],
    ends: float,
) -> list[str]:
    expression = member.task
    matches = [expression] if expression in names else []
    if not matches or re.escape(expression) != expression:
        matches = _match_names(expression, names, ends, mixture)
    if not matches:
        hint = f"It is in {mixture.path}."
        if expression in mixtures:
            hint += f" It is a mixture: write {{mixture: {expression}, rate: 500}}."
        raise unknown_name("task", expression, names, hint)
    if member.exclude is not None:
        excluded = {*_match_names(member.exclude, matches, ends, mixture)}
        matches = [name for name in matches if name not in excluded]
        if not matches:
            raise UserError(
                f"{mixture.path}: mixture '{mixture.name}': {reprlib.repr(member.exclude)} excludes "
                f"all tasks that {reprlib.repr(expression)} selects. Remove the member, or exclude "
                "fewer tasks."
            )
    return matches


def _rate_of(
    mixture: OwnMixture,
    member: MixtureMember,
    name: str,
    training_rates: Mapping[str, TrainingRate],
) -> Rate:
    """Returns the rate of a task or mixture `name`, which a member selects."""
    where = f"{mixture.path}: mixture '{mixture.name}'"
    base, cap = member.rate, member.cap or math.inf
    if base == "t0" and not name.endswith(SCORE_EVAL):
        base = training_rates.get(name) or training_rates.get(re.sub(_FEW_SHOT, "", name))
        if base is None:
            raise UserError(
                f"{where}: the rate 't0' is for tasks with a prompt, and '{name}' has none. Write "
                "'rate: examples' or a number."
            )
    elif isinstance(base, str):
        base, cap = count_training_examples, member.cap or MAX_EXAMPLES_PER_DATASET
    rate = MixingRate(base, cap, member.scale, member.temperature)
    if callable(base):
        return rate
    try:
        number = rate(None)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    # SeqIO expects a number for a mixture.
    return number if member.mixture or number == base else rate


def _match_names(
    expression: str, names: Collection[str], ends: float, mixture: OwnMixture
) -> list[str]:
    """Returns the names that an expression of a user's mixture matches, within a time limit."""
    try:
        return match_names(expression, names, ends=ends)
    except (TimeoutError, ValueError) as error:
        slow = f"comparing it with the names of tasks takes over {_MATCHING_SECONDS} s"
        reason = slow if isinstance(error, TimeoutError) else str(error)
        raise UserError(
            f"{mixture.path}: mixture '{mixture.name}': {reprlib.repr(expression)}: {reason}. "
            "Write a simpler expression, such as 'reviews_.*', or the names of the tasks"
        ) from error

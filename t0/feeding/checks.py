"""Checks before a run that its mixture exists and its data is there, and what to know of it."""

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence

from t0.compat import seqio
from t0.errors import UserError, unknown_name
from t0.sources import data_dirs
from t0.tasks.recipe_tasks import RecordSource

# The records of a task whose targets are measured before a run: a second's work.
MEASURED = 10_000
# The subfolders of a data folder that become tasks, named after them.
RECIPES = ("text", "sni", "qa", "mt")


def known_mixture(name: str) -> seqio.Mixture | seqio.Task:
    """Returns the mixture or task called `name`.

    Raises:
      UserError: naming the closest mixtures and tasks.
    """
    names = [*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()]
    if name not in names:
        more = "List them with: t0 tasks (is --module_import right?)"
        kind = name.partition("_")[0]
        if kind in RECIPES:
            folders = ", ".join(map(str, data_dirs())) or "none"
            more = (
                f"{kind}_* are tasks of t0.recipes, made of a folder {kind}/ in a data folder; the "
                f"data folders (--data_dir or T0_DATA_DIR): {folders}"
            )
        raise unknown_name("mixture or task", name, names, more)
    return seqio.get_mixture_or_task(name)


def require_cached(name: str, *, function: str, settings: Mapping[str, Sequence[str]]) -> None:
    """Checks that every task of the mixture `name` is in one of the cache folders.

    Args:
      name: of a mixture or task.
      function: the gin name of the dataset function that reads it, such as
        "mesh_train_dataset_fn".
      settings: flag -> values of this command that the caching command must have too.

    Raises:
      UserError: with the command that makes what is missing.
    """
    tasks = seqio.get_subtasks(known_mixture(name))
    missing = [task.name for task in tasks if not task.cache_dir]
    if not missing:
        return
    folders = list(dict.fromkeys(seqio.get_global_cache_dirs()))
    into = folders[-1] if folders else "DIR"
    named = "" if folders else f" and pass --additional_task_cache_dirs={into},"
    raise UserError(
        f"{len(missing)} of the {len(tasks)} tasks of {name} are not cached, the first "
        f"'{missing[0]}' (looked in: {', '.join(folders) or 'no folder was given'}). "
        f"Cache them with:\n  {_caching_command(name, into, settings)}\n{named} or read them live "
        f"with --gin_param='{function}.use_cached = False'"
    )


def _caching_command(name: str, into: str, settings: Mapping[str, Sequence[str]]) -> str:
    flags = [f"--tasks={name}", f"--output_cache_dir={into}"]
    flags += [f"--{flag}={value}" for flag, values in settings.items() for value in values]
    return shlex.join(["seqio_cache_tasks", *flags])


def require_split(name: str, split: str, *, setting: str = "run.dataset_split") -> None:
    """Checks that a task of the mixture `name` has the split; `setting` is gin's name of it.

    Raises:
      UserError: with the splits that there are.
    """
    tasks = seqio.get_subtasks(known_mixture(name))
    there = sorted({present for task in tasks for present in task.splits})
    if split not in there:
        raise UserError(
            f"no task of {name} has a split '{split}'; there are: {', '.join(there)} ({setting})"
        )


def notes(name: str, split: str, lengths: Mapping[str, int] | None) -> Iterator[str]:
    """Yields what a user should know of the recipes' tasks in the mixture `name`.

    What a source left out, and how many targets are longer than they may be, in tokens with EOS:
    training sees their beginnings only.

    Args:
      name: of a mixture or task.
      split: which is read.
      lengths: feature -> most tokens; None if nothing is cut.

    Raises:
      UserError: if the data is not sound.
    """
    for task in seqio.get_subtasks(known_mixture(name)):
        if isinstance(task.source, RecordSource) and split in task.splits:
            yield from task.source.notes(split)
            most = (lengths or {}).get("targets")
            if most:
                yield from _long_targets(task, split, most)


def _long_targets(task: seqio.Task, split: str, most: int) -> Iterator[str]:
    feature = task.output_features["targets"]
    looked_at = long = 0
    for record in itertools.islice(task.source.records(split), MEASURED):
        # Of several outputs one is drawn; which, nobody knows yet.
        texts = record["outputs"] if "outputs" in record else [record["targets"]]
        room = most - int(feature.add_eos)
        looked_at += 1
        long += any(len(feature.vocabulary.encode(text)) > room for text in texts)
    if long:
        yield (
            f"{task.name}, {split}: {long:,} of {looked_at:,} targets are longer than {most} "
            "tokens and will be cut"
        )

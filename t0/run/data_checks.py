"""Checks the data of a configured run: mixtures, features, splits, caches, lengths, batch.

    check_mixtures(run)         # UserError: unknown mixture or task 't0_trian'. Did you mean ...

Without these checks, Mesh TensorFlow would fail minutes later with a traceback, or would not notice
the error. They are listed in `t0.run.checks`.
"""

import inspect
from collections.abc import Iterator

from t0.compat import mtf, seqio, t5_mesh
from t0.config.bindings import bound
from t0.errors import AbsentData, UserError, unknown_name
from t0.evaluation.eval_datasets import configured_tasks
from t0.evaluation.kinds import is_ranked
from t0.evaluation.settings import EvaluationSettings
from t0.feeding import cut_shares, data_spec, host_graphs
from t0.feeding.uncached import own_sampling
from t0.mesh.devices import check_batch as check_batch_size
from t0.run.parsed_run import ParsedRun
from t0.training.estimator import train_model

# The modes that read a mixture with `mesh_eval_dataset_fn`.
_EVALUATES = ("eval", "score_eval", "perplexity_eval", "score_from_dataset")
DATASET_FUNCTIONS = {"train": "mesh_train_dataset_fn"}
DATASET_FUNCTIONS |= dict.fromkeys(_EVALUATES, "mesh_eval_dataset_fn")
# run.mode -> the parameter of `run` to which gin binds the function that reads the data.
READS = {"train": "run.train_dataset_fn"} | dict.fromkeys(_EVALUATES, "run.eval_dataset_fn")
READS["score_from_dataset"] = "score_from_dataset.score_dataset_fn"
# run.mode -> the gin file that binds this function.
_FILES = {
    "train": "dataset.gin",
    "eval": "eval.gin",
    "score_eval": "score_eval.gin",
    "perplexity_eval": "perplexity_eval.gin",
    "score_from_dataset": "score_from_task.gin",
}


def check_dataset_function(run: ParsedRun) -> None:
    """Checks that gin binds a function that reads the data."""
    own_loop = bound("run.train_model_fn") not in (None, train_model)
    name = READS.get(run.mode)
    if name and bound(name) is None and not (run.mode == "train" and own_loop):
        raise UserError(
            f"{name} is not set, so mode '{run.mode}' has no data: add "
            f"--gin_file={_FILES[run.mode]}"
        )
    if run.mode == "train" and run.split != "train":
        raise UserError(f"training reads the split 'train', but run.dataset_split is '{run.split}'")


def check_lengths(run: ParsedRun) -> None:
    """Checks that the lengths are set, except in modes that may read whole texts."""
    if run.lengths is None and run.mode not in ("eval", "score_eval"):
        raise UserError(
            f"run.sequence_length must be set in mode '{run.mode}' (in a run file it is the macro "
            "TASK_FEATURE_LENGTHS): --gin_param=\"run.sequence_length = {'inputs': 512, "
            "'targets': 64}\""
        )


def check_batch(run: ParsedRun) -> None:
    """Checks that the batch is a number of sequences that the mesh can split."""
    check_batch_size(
        bound("run.batch_size", ("tokens_per_replica", 2048)),
        sequence_length=run.lengths,
        mesh_shape=mtf.convert_to_shape(run.mesh_shape),
        layout_rules=mtf.convert_to_layout_rules(bound("run.layout_rules")),
    )


def check_mixtures(run: ParsedRun) -> None:
    """Checks that the mixtures of the run's mode exist."""
    if vocabulary_of := bound("get_vocabulary.mixture_or_task_name"):
        data_spec.known_mixture(vocabulary_of)
    for _, name in _mixtures(run.mode):
        data_spec.known_mixture(name)


def check_splits(run: ParsedRun) -> None:
    """Checks that at least one task of each mixture has the run's split."""
    for _, name in _mixtures(run.mode):
        data_spec.require_split(name, run.split)


def check_features(run: ParsedRun) -> None:
    """Checks that the mixtures have all features for which a length is set."""
    for _, name in _mixtures(run.mode):
        features = data_spec.known_mixture(name).output_features
        for feature in run.lengths or {}:
            if feature not in features:
                hint = f"{name} has {' and '.join(features)}; the lengths are those of "
                hint += "run.sequence_length (TASK_FEATURE_LENGTHS)."
                raise unknown_name("feature", feature, features, hint)


def check_caches(run: ParsedRun) -> Iterator[str]:
    """Checks that the caches that the run reads exist, and are current and whole.

    Yields:
      notes about caches that are stale, or that do not record how they were made.
    """
    for function, name in _mixtures(run.mode):
        if not _uses_cache(function):
            continue
        of_task = EvaluationSettings().tasks if run.mode in ("eval", "score_eval") else ()
        for mixture in of_task or [name]:
            data_spec.require_cached(mixture, function=function, settings=run.task_flags)
        yield from data_spec.require_current(
            of_task or [name], settings=run.task_flags, allow_stale=run.flags.allow_stale_cache
        )
        data_spec.require_whole(name, run.split)


def check_live_tasks(run: ParsedRun) -> None:
    """Checks that the servers of a TPU's hosts, which cannot run Python, need not render tasks."""
    for function, name in _mixtures(run.mode):
        if not _uses_cache(function):
            host_graphs.require_no_live_tasks(
                name, run.split, function=function, settings=run.task_flags
            )


def describe_data(run: ParsedRun) -> Iterator[str]:
    """Yields notes about the data: unread caches, the sampling, the share that is truncated."""
    for function, name in _mixtures(run.mode):
        hints = _hints(run, function, name)
        yield from hints
        try:
            yield from _describe_truncation(run, function, name)
        except AbsentData as error:
            raise AbsentData("\n".join([str(error), *hints])) from error
    tasks = configured_tasks() if run.mode == "eval" else None
    if tasks and run.lengths:
        # Ranked tasks are left out, because ranking reads all data before it scores, and then
        # prints these notes itself.
        others = [task for task in tasks if not is_ranked(task)]
        use_cached = _uses_cache("mesh_eval_dataset_fn")
        yield from cut_shares.cut_notes(others, run.split, run.lengths, use_cached=use_cached)


def read_whole_caches(run: ParsedRun) -> None:
    """Checks all bytes of the caches that the run reads. Call it if reading has failed.

    Raises:
      UserError: a cache is damaged.
    """
    function = DATASET_FUNCTIONS.get(run.mode)
    name = bound(f"{function}.mixture_or_task_name") if function else None
    if name and _uses_cache(function):
        data_spec.require_whole(name, run.split, contents=True)


def _hints(run: ParsedRun, function: str, name: str) -> list[str]:
    unread = None if _uses_cache(function) else data_spec.unread_caches(name, function=function)
    sampling = own_sampling(data_spec.known_mixture(name)) if run.mode == "train" else None
    draws = f"{sampling} draws the examples; SeqIO calls it, as in T5" if sampling else None
    return [hint for hint in (unread, draws) if hint]


def _describe_truncation(run: ParsedRun, function: str, name: str) -> Iterator[str]:
    """Yields notes about the share of the mixture `name` that the run's lengths truncate."""
    yield from data_spec.notes(name, run.split)
    if run.lengths and run.mode in ("train", "perplexity_eval"):
        tasks = seqio.get_subtasks(data_spec.known_mixture(name))
        with_split = [task for task in tasks if run.split in task.splits]
        use_cached = _uses_cache(function)
        yield from cut_shares.cut_notes(with_split, run.split, run.lengths, use_cached=use_cached)


def _uses_cache(function: str) -> bool:
    return bool(bound(f"{function}.use_cached", False))


def _mixtures(mode: str) -> list[tuple[str, str]]:
    """Returns the dataset function that reads a mixture in a mode, with the mixture's name.

    The list is empty if no function reads a mixture. A function that reads files, such as T5's
    function for TSV files or a function of Mesh TensorFlow, does not read a mixture. A mixture may
    be set nevertheless, because its vocabulary is used. A user's own function may call T5's
    function. If a mixture is set, we assume that the user's function does so.
    """
    function = DATASET_FUNCTIONS.get(mode)
    reader = bound(READS[mode]) if function else None
    if reader is None:
        return []
    mixture = bound(f"{function}.mixture_or_task_name")
    if reader in (t5_mesh.mesh_train_dataset_fn, t5_mesh.mesh_eval_dataset_fn):
        return [(function, mixture)]
    wrapped = inspect.unwrap(reader)
    reads_files = wrapped is inspect.unwrap(t5_mesh.tsv_dataset_fn) or (
        getattr(wrapped, "__module__", "").startswith("mesh_tensorflow.")
    )
    return [(function, mixture)] if mixture and not reads_files else []

"""The command `seqio_cache_tasks`: writes tasks as tokenized records in SeqIO's cache layout.

    seqio_cache_tasks --tasks=t0_train --output_cache_dir=/data/cache --module_import=t0.seqio_tasks
    seqio_cache_tasks --output_cache_dir=reviews/cache        # in a folder that `t0 init` wrote

SeqIO has a command of the same name. This command accepts all of its flags, with the same meaning,
and has further flags.
"""

import dataclasses
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags
from absl import logging as _  # noqa: F401 (defines --alsologtostderr and --verbosity)

from t0.cli.arguments import make_working_directory_importable
from t0.config.flag_table import Flag
from t0.config.flags import define_flags, parse_words
from t0.config.starter_settings import fill_flags, find_starter_folder
from t0.errors import UserError, reported
from t0.files.publishing import folder_of_run
from t0.progress import ProgressLine

COMMAND = "seqio_cache_tasks"
# (kind, name, default, help) of each flag. SeqIO's flags come first, then ours.
FLAGS = tuple(itertools.starmap(Flag, (
    ("list", "tasks", None, "Regexes of task names, or names of mixtures (default: all tasks)."),
    ("list", "excluded_tasks", None, "Regexes or mixtures of tasks to skip."),
    ("string", "output_cache_dir", None, "The directory to write to, local or gs://. Required."),
    ("list", "tasks_additional_cache_dirs", [],
     "More directories to search for cached tasks. Also --additional_task_cache_dirs, --cache_dirs."),
    ("multi_string", "module_import", [], "Modules with tasks (default: T0's). Repeatable."),
    ("list", "pipeline_options", None, "Beam options; others than --runner=DirectRunner use Beam."),
    ("boolean", "ignore_other_caches", False, "Also write tasks cached in other directories."),
    ("boolean", "overwrite", False, "Rewrite tasks that the output directory already has."),
    ("integer", "min_shards", None, "Minimum files per split (default: by its size)."),
    ("integer", "max_shards", 0, "Maximum files per split; without min_shards, that many (to 64)."),
    ("string", "tfds_data_dir", None, "Directory of TensorFlow Datasets, for all tasks."),
    ("integer", "base_seed", None, "Varies the seeds of preprocessors, reproducibly."),
    ("boolean", "enable_char_counts", False, "Add character counts to statistics (slow)."),
    ("enum", "output_format", "tfrecord", "Always TFRecord.", ["arrayrecord", "tfrecord"]),
    ("boolean", "preserve_random_access", False, "Has no effect."),
    ("multi_string", "data_dir", [], "Folders of datasets (T0_DATA_DIR). Repeatable."),
    ("boolean", "skip_bad_rows", False, "Skip rows with half a surrogate pair (T0_SKIP_BAD_ROWS)."),
    ("string", "vocab", None, "SentencePiece model for prompted tasks (T0_VOCAB)."),
    ("multi_string", "gin_param", [], "Gin bindings of tasks, such as sni.seed=1. Repeatable."),
    ("integer", "num_workers", None, "Processes; default: all cores; 0: in this process."),
    ("list", "splits", None, "Splits to cache; default: all that a task has."),
    ("boolean", "skip_absent_splits", False, "Skip and report splits whose data is missing."),
    ("float", "max_dropped_share", 0.1, "Fail if a split loses more rows for unknown reasons."),
    ("boolean", "allow_hidden_labels", False, "Keep rows and splits without labels."),
    ("boolean", "dry_run", False, "Estimate rows, tokens, size and minutes; write nothing."),
    ("boolean", "quiet", False, "Print only warnings and errors."),
)))  # fmt: skip


def command_flags() -> flags.FlagValues:
    """Returns the flags of `seqio_cache_tasks`."""
    return define_flags(FLAGS)


def parse(argv: Sequence[str]) -> flags.FlagValues:
    """Parses the command line, including absl's own flags.

    Raises:
      UserError: the command line is invalid.
    """
    flag_values = command_flags()
    words = parse_words(flag_values, argv)
    if words:
        raise UserError(f"unexpected argument '{words[0]}'. Select tasks with --tasks={words[0]}")
    if not flag_values.output_cache_dir:
        raise UserError(f"--output_cache_dir=DIR is required; see {COMMAND} --help")
    if settings := find_starter_folder(flag_values.output_cache_dir):
        tasks = f"{settings.name}_train,{settings.name}_rank"
        fill_flags(flag_values, {"tasks": tasks, **settings.flags()})
    return flag_values


def main(argv: Sequence[str]) -> None:
    """Runs the command line `argv`, whose first word is the command's name."""
    if {"--help", "-h", "-help", "--helpfull", "--helpshort"} & set(argv[1:]):
        print(f"{__doc__}\nflags:\n{command_flags().get_help(include_special_flags=False)}")
        return
    flag_values = parse(argv)
    if flag_values.tasks and not flag_values.module_import:
        flag_values.module_import = ["t0.seqio_tasks"]  # tasks need an imported module
    if flag_values.output_format != "tfrecord" or flag_values.preserve_random_access:
        note = (
            "the cache is TFRecord, not ArrayRecord: SeqIO 0.0.20 writes and reads no other format"
        )
        print(note, file=sys.stderr)
    make_working_directory_importable()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # caching does not use accelerators
    if flag_values.vocab:
        os.environ["T0_VOCAB"] = flag_values.vocab  # t5's own tasks read it during import
    # Imported here, because it imports TensorFlow, which takes seconds.
    from t0.caching import CacheSelection, RecordOptions, Setup, cache, estimate, workers
    from t0.catalogue.row_preview import T0_LENGTHS

    if not flags.FLAGS["verbosity"].present:
        workers.quiet()
    selection, options, setup = (
        _from_flags(kind, flag_values) for kind in (CacheSelection, RecordOptions, Setup)
    )
    if starter := find_starter_folder(flag_values.output_cache_dir):
        lengths = T0_LENGTHS | starter.lengths
        options = dataclasses.replace(options, lengths=(lengths["inputs"], lengths["targets"]))
    if flag_values.dry_run:
        estimate(selection, options, setup, num_workers=flag_values.num_workers)
        return
    with ProgressLine.hidden(hides=flag_values.quiet):
        cache(
            selection,
            options,
            setup,
            num_workers=flag_values.num_workers,
            pipeline_options=flag_values.pipeline_options or (),
        )


def _from_flags(kind: type, flag_values: flags.FlagValues) -> Any:
    # The fields have the names of flags. If a flag is not set, its field keeps the default.
    names = [name for name in kind.__dataclass_fields__ if name in flag_values]
    values = {name: flag_values[name].value for name in names}
    return kind(**{name: value for name, value in values.items() if value is not None})


def console_entry_point() -> None:
    """Runs this command as the installed script does."""
    with reported(COMMAND), folder_of_run():
        main(sys.argv)


if __name__ == "__main__":
    console_entry_point()

"""The command `seqio_cache_tasks`: writes tasks as tokenised records in SeqIO's cache layout.

    seqio_cache_tasks --tasks=t0_train --output_cache_dir=/data/cache --module_import=t0.seqio_tasks

It takes every flag of SeqIO's command of the same name, with the same meaning, and more.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags
from absl import logging as _  # noqa: F401 (defines --alsologtostderr and --verbosity)

from t0.cli.arguments import make_working_directory_importable
from t0.config.flags import define_flags, parse_words
from t0.errors import UserError, reported
from t0.files.publishing import folder_of_run

COMMAND = "seqio_cache_tasks"
# (kind, name, default, help): SeqIO's flags first, then ours.
FLAGS = (
    ("list", "tasks", None, "Regexes of task names, or names of mixtures; all tasks if left out."),
    ("list", "excluded_tasks", None, "Regexes or mixtures of tasks to skip."),
    ("string", "output_cache_dir", None, "The directory to write to, local or gs://. Required."),
    ("list", "tasks_additional_cache_dirs", [], "More directories to look for cached tasks in."),
    ("multi_string", "module_import", [], "Modules with tasks (default: T0's). Repeatable."),
    ("list", "pipeline_options", None, "Beam options. More than --runner=DirectRunner: use Beam."),
    ("boolean", "ignore_other_caches", False, "Also write tasks cached in other directories."),
    ("boolean", "overwrite", False, "Write tasks again that are finished in the output directory."),
    ("integer", "min_shards", None, "Least number of files for a split; default: by its size."),
    ("integer", "max_shards", 0, "Largest number of files for a split; alone, that many up to 64."),
    ("string", "tfds_data_dir", None, "Directory of TensorFlow Datasets, for all tasks."),
    ("integer", "base_seed", None, "Varies the seeds of preprocessors, reproducibly."),
    ("boolean", "enable_char_counts", False, "Count characters into the statistics (slow)."),
    ("enum", "output_format", "tfrecord", "TFRecord in any case.", ["arrayrecord", "tfrecord"]),
    ("boolean", "preserve_random_access", False, "Read by nothing."),
    ("multi_string", "data_dir", [], "Folders of datasets (T0_DATA_DIR). Repeatable."),
    ("boolean", "skip_bad_rows", False, "Skip rows with half a surrogate pair (T0_SKIP_BAD_ROWS)."),
    ("string", "vocab", None, "SentencePiece model for prompted tasks (T0_VOCAB)."),
    ("multi_string", "gin_param", [], "Bindings of the tasks, as sni.seed=1. Repeatable."),
    ("integer", "num_workers", None, "Processes; default: all cores; 0: in this process."),
    ("list", "splits", None, "Splits to cache; default: all that a task has."),
    ("boolean", "skip_absent_splits", False, "Leave out splits whose data is absent, and say so."),
    ("float", "max_dropped_share", 0.1, "A split fails that loses more of its rows, unknown why."),
    ("boolean", "allow_hidden_labels", False, "Keep rows and splits without labels."),
)  # fmt: skip


def command_flags() -> flags.FlagValues:
    """Returns the flags of `seqio_cache_tasks`."""
    return define_flags(FLAGS)


def parse(argv: Sequence[str]) -> flags.FlagValues:
    """Parses the command line, also absl's own flags; a mistake in it is a `UserError`."""
    given = command_flags()
    words = parse_words(given, argv)
    if words:
        raise UserError(f"what is '{words[0]}'? Give tasks as --tasks={words[0]}")
    if not given.output_cache_dir:
        raise UserError(f"--output_cache_dir=DIR is required; see {COMMAND} --help")
    return given


def main(argv: Sequence[str]) -> None:
    """Runs the command line `argv`, whose first word is the command."""
    if {"--help", "-h", "-help", "--helpfull", "--helpshort"} & set(argv[1:]):
        print(f"{__doc__}\nflags:\n{command_flags().get_help(include_special_flags=False)}")
        return
    given = parse(argv)
    if given.tasks and not given.module_import:
        given.module_import = ["t0.seqio_tasks"]  # without a module there would be no tasks at all
    if given.output_format != "tfrecord":
        print(
            f"--output_format={given.output_format}: SeqIO 0.0.20 also writes TFRecord for it, and "
            "reads nothing else: the cache is TFRecord",
            file=sys.stderr,
        )
    if given["preserve_random_access"].present:
        print(
            "--preserve_random_access has no effect: it is for ArrayRecord, which is not written",
            file=sys.stderr,
        )
    make_working_directory_importable()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # caching leaves accelerators to others
    if given.vocab:
        os.environ["T0_VOCAB"] = given.vocab  # t5's own tasks read it while they are imported
    # Imported here, because TensorFlow takes seconds.
    from t0.caching import CacheSelection, RecordOptions, Setup, cache, workers

    if not flags.FLAGS["verbosity"].present:
        workers.quiet()
    parts = [_from_flags(kind, given) for kind in (CacheSelection, RecordOptions, Setup)]
    cache(*parts, num_workers=given.num_workers, pipeline_options=given.pipeline_options or ())


def _from_flags(kind: type, given: flags.FlagValues) -> Any:
    # The fields have the flags' names; a field whose flag was not given has its default.
    values = {name: given[name].value for name in kind.__dataclass_fields__}
    return kind(**{name: value for name, value in values.items() if value is not None})


def console_entry_point() -> None:
    """Runs the installed command."""
    with reported(COMMAND), folder_of_run():
        main(sys.argv)


if __name__ == "__main__":
    console_entry_point()

"""Lists the checks of a run that gin configures, in their order.

    findings.check_all(CHECKS, run)
    findings.check_all(SLOW_CHECKS, run)        # reads data

They run before anything is written or converted. A check whose input is faulty is skipped.
"""

from typing import get_args

from t0.config.bindings import bound
from t0.run.binding_checks import check_objects, check_settings, check_values
from t0.run.checkpoint_checks import (
    check_adapter,
    check_checkpoint,
    check_checkpoint_vocabulary,
    check_last_step,
)
from t0.run.data_checks import (
    check_batch,
    check_caches,
    check_dataset_function,
    check_features,
    check_lengths,
    check_live_tasks,
    check_mixtures,
    check_splits,
    describe_data,
)
from t0.run.evaluation_checks import check_evaluated_tasks, check_mode
from t0.run.findings import After, Check
from t0.run.initial_checkpoint import check_export
from t0.run.parsed_run import ParsedRun
from t0.training.trackers import Tracker, check_installed


def check_vocabulary(run: ParsedRun) -> None:
    """Checks that the run's vocabulary can be read."""
    run.vocabulary  # noqa: B018 (reading it raises the error)


def check_exported_model(run: ParsedRun) -> None:
    """Checks that the trained model can be exported to the folder in --export_hf."""
    if run.flags.export_hf:
        check_export(run.flags, run.vocabulary, trains=run.mode == "train")


def check_tracker(run: ParsedRun) -> None:
    """Checks that the package of the run's experiment tracker is installed."""
    tracker = bound("train_loop.report_to")
    if run.mode == "train" and tracker in get_args(Tracker):
        check_installed(tracker)


_DATA = (check_dataset_function, check_mixtures)

DATA_CHECKS: tuple[Check | After, ...] = (
    check_dataset_function,
    After((check_dataset_function,), check_mixtures),
    After((*_DATA, check_lengths), check_features),
    After(_DATA, check_splits),
    After((*_DATA, check_settings, check_splits), check_caches),
)
CHECKS: tuple[Check | After, ...] = (
    check_values,
    After((check_values,), check_settings),
    check_tracker,
    check_objects,
    check_lengths,
    After((check_lengths,), check_batch),
    *DATA_CHECKS,
    After((check_mixtures,), check_vocabulary),
    After((check_vocabulary,), check_exported_model),
    After((*_DATA, check_settings, check_splits), check_evaluated_tasks),
    After((*_DATA, check_settings, check_evaluated_tasks), check_mode),
    check_adapter,
    After((check_adapter,), check_checkpoint),
    After((check_checkpoint,), check_last_step),
    After((check_vocabulary, check_checkpoint), check_checkpoint_vocabulary),
)
SLOW_CHECKS: tuple[Check | After, ...] = (describe_data,)
# The checks of a run whose data is read by the hosts of a TPU.
HOST_CHECKS: tuple[Check | After, ...] = (After((*_DATA, check_splits), check_live_tasks),)

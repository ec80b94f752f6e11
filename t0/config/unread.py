"""Bindings of the command line that a run does not read.

    unread_params(parsed, "score_eval")
    # ["train_loop.seed is read in mode 'train' only: it has no effect here"]

Bindings in files are not looked at: a saved configuration has those of other modes. Names of Mesh
TensorFlow and T5 are not, either.
"""

from t0.compat import gin_config
from t0.config.parse import Config, command_line_bindings

_TRAINING = ("train",)
_RANKING = ("score_eval", "eval")
# Function of this project that gin configures -> the modes that call it. Functions without a row
# are called in every mode, by the tasks or by the macros of run files.
READ_IN = {
    "t0.apply_updates": _TRAINING,
    "t0.evaluation": _RANKING,
    "t0.infer": ("infer",),
    "t0.keep_checkpoints": _TRAINING,
    "t0.packing": _TRAINING,
    "t0.score_eval": _RANKING,
    "t0.task_metrics": _TRAINING,
    "t0.train_dataset_fn": _TRAINING,
    "t0.train_loop": _TRAINING,
}
# Optimizers and schedules: called in training, if a parameter such as run.optimizer names them.
CHOSEN = (
    "t0.AdamWOptimizer",
    "t0.AdamWScaleOptimizer",
    "t0.MomentumSGDOptimizer",
    "t0.constant_with_warmup",
    "t0.cosine_with_warmup",
    "t0.linear_with_warmup",
    "t0.rsqrt",
    "t0.rsqrt_then_linear",
)


def unread_params(parsed: Config, mode: str) -> list[str]:
    """Returns a line for each binding of the command line that a mode does not read."""
    named = {one.configurable.selector for one in gin_config.iterate_references(gin_config._CONFIG)}
    lines = []
    for _, selector, parameter in command_line_bindings(parsed):
        name = f"{selector.removeprefix('t0.')}.{parameter}"
        modes = READ_IN.get(selector, (mode,))
        if mode not in modes:
            said = " and ".join(f"'{one}'" for one in modes)
            lines.append(f"{name} is read in mode {said} only: it has no effect here")
        elif selector in CHOSEN and (mode not in _TRAINING or selector not in named):
            lines.append(
                f"{name} has no effect here: @{selector} is for training, and no parameter such "
                "as run.optimizer or run.learning_rate_schedule names it"
            )
    return lines

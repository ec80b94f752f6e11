"""Names the settings of Mesh TensorFlow on the command line that a run without a TPU does not read.

Our own code trains, ranks and predicts there, in place of functions of Mesh TensorFlow. `UNREAD`
lists the parameters of these functions that our code does not read, with the reason. The modules of
our code read the other parameters, or refuse them:

    find_unread(parsed, "train")
    # ["run.skip_seen_data = True has no effect here: training continues at its place in the data"]
"""

from t0.compat import gin_config
from t0.config import parse
from t0.config.bindings import bound, changed_parameters
from t0.config.t5_layers import ENCODER_DECODER
from t0.inference.jobs import has_generator

_TRAINING = ("train",)
_RANKING = ("score_eval",)
_OURS = ("train", "score_eval", "infer")
_ALWAYS = ("train", "score_eval", "infer", "eval", "perplexity_eval")
_FLAG = "the command passes it; set the flag --{}"
_RESUMES = "training continues at its place in the data"
_OF_TPU = "it is for runs with --tpu"
_NO_SCORES = "rank evaluation writes results_<step>.json instead of scores and texts"

# Function of Mesh TensorFlow -> its parameter -> (modes in which nothing reads it, the reason). Our
# own code runs in these modes.
UNREAD: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    "run": {
        **{
            name: (_ALWAYS, _FLAG.format(name))
            for name in ("tpu_job_name", "tpu", "gcp_project", "tpu_zone", "model_dir")
        },
        "vocabulary": (_ALWAYS, "the vocabulary comes from the tasks; see --vocab"),
        "autostack": (_OURS, "it changes how Mesh TensorFlow stores variables, and no result"),
        "iterations_per_loop": (_ALWAYS, _OF_TPU),
        "skip_seen_data": (_TRAINING, _RESUMES),
        "seen_data_init_step": (_TRAINING, _RESUMES),
        "checkpoint_input_pipeline": (_TRAINING, _RESUMES),
        "output_eval_examples": (_RANKING, _NO_SCORES),
    },
    "tpu_estimator_model_fn": {
        "outer_batch_size": (("score_eval", "infer"), "it does not change scores or predictions"),
        "tpu_summaries": (_ALWAYS, _OF_TPU),
        "hierarchical_tiling_spec": (_ALWAYS, _OF_TPU),
        "weight_decay_checkpoint": (_ALWAYS, "Mesh TensorFlow does not read it either"),
    },
    "pack_dataset": {"use_custom_ops": (_TRAINING, "this package packs examples itself")},
    "mesh_eval_dataset_fn": {"pack": (_RANKING, "the choices of an example are not packed")},
    "score_with_estimator": {"score_postprocess_fn": (_RANKING, _NO_SCORES)},
    "save_scores": {
        "scores_filename": (_RANKING, _NO_SCORES),
        "save_example_text": (_RANKING, _NO_SCORES),
    },
}


def find_unread(parsed: parse.Config, mode: str) -> list[str]:
    """Describes the settings of Mesh TensorFlow on the command line that a mode does not read.

    Settings in files are left out, as in `parse.find_unread_params`. The run is without a TPU.

    Args:
      parsed: the configuration.
    """
    settings = {(selector, name) for _, selector, name in parse.command_line_bindings(parsed)}
    if not settings or (mode in _OURS and not _runs_here(mode)):
        return []
    lines = []
    for function, reasons in UNREAD.items():
        selector = gin_config._REGISTRY.get_match(function).selector
        for name, (modes, reason) in reasons.items():
            if mode not in modes or (selector, name) not in settings:
                continue
            start = f"{function}.{name} = "
            lines += [
                f"{line} has no effect here: {reason}"
                for line in changed_parameters(function)
                if line.startswith(start)
            ]
    return lines


def _runs_here(mode: str) -> bool:
    """Returns whether our own code runs a mode, and not Mesh TensorFlow's or the user's."""
    from t0.training.estimator import train_model

    if mode == "train":
        return bound("run.train_model_fn") in (None, train_model)
    model_type = bound("run.model_type", ENCODER_DECODER)
    if mode == "infer":
        return has_generator(model_type)
    return model_type == ENCODER_DECODER and bound("run.predict_fn", evaluate=False) is None

"""The configuration that a model directory was trained with, so that another is noticed.

`configuration.json` beside the checkpoints holds gin's values as text. A run that would go on with
others is refused, with what differs; what may change between two starts of one run is left out.

    check_same("/models/tiny", allowed=False)       # UserError: the differences
    save("/models/tiny")
"""

import json
import os
import re

from t0.compat import gin
from t0.compat import tf1 as tf
from t0.errors import UserError

FILE = "configuration.json"

# Parameters that may differ between two starts of the same run.
_MAY_DIFFER = re.compile(
    r"(^|[./])(run\.(train_steps|total_run_steps|save_checkpoints_steps|keep_checkpoint_max|"
    r"model_dir|mesh_shape|mesh_devices|mode|iterations_per_loop|init_checkpoint|eval_\w+|"
    r"export_\w+|perplexity_eval_steps|dataset_split|skip_seen_data|seen_data_init_step|"
    r"checkpoint_input_pipeline|tpu\w*|gcp_project|autostack|layout_rules|vocabulary|"
    r"train_model_fn|output_eval_examples|predict_fn)"
    r"|train_loop\.\w+|task_metrics\.\w+|keep_checkpoints\.\w+|tpu_mesh_shape\.\w+"
    r"|\w+\.model_info_file"
    # Asked only where an initial checkpoint is read: at the first start.
    r"|init_checkpoint_variable_mapping\.\w+|should_load_variable\.\w+)$"
)


def current() -> dict[str, str]:
    """Returns what gin's functions were called with so far: parameter -> value as text."""
    values: dict[str, str] = {}
    text = gin.operative_config_str(max_line_length=1_000_000)
    for line in text.splitlines():
        name, equals, value = line.partition(" = ")
        if equals and not line.startswith("#"):
            values[name] = value
    return _compared(values)


def _compared(values: dict[str, str]) -> dict[str, str]:
    """Leaves out what may differ, and macros that only such parameters read, like TRAIN_STEPS."""
    values = {name: value for name, value in values.items() if not _MAY_DIFFER.search(name)}
    found = {name for name in values if "." in name}  # a macro's name has no dot
    while True:
        text = " ".join(values[name] for name in found)
        named = {name for name in re.findall(r"%([\w/]+)", text) if name in values} | found
        if named == found:
            return {name: value for name, value in values.items() if name in found}
        found = named


def check_same(model_dir: str, *, allowed: bool) -> list[str]:
    """Compares the configuration with the one recorded in `model_dir`, if there is one.

    Args:
      model_dir: of the run.
      allowed: whether differences are merely returned.

    Returns:
      the differences, a line each.

    Raises:
      UserError: with the differences.
    """
    path = os.path.join(model_dir, FILE)  # noqa: PTH118
    if not tf.io.gfile.exists(path):
        return []
    with tf.io.gfile.GFile(path) as file:
        before = _compared(json.loads(file.read()))
    now = current()
    lines = [
        f"  {name}: was {before.get(name, 'not set')}, is {now.get(name, 'not set')}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if lines and not allowed:
        raise UserError(
            f"{model_dir} holds a run of another configuration:\n"
            + "\n".join(lines)
            + "\nName another --model_dir, or go on with the new values by --allow_config_change"
        )
    return lines


def save(model_dir: str) -> None:
    """Records the configuration, and gin's own `operative_config.gin`."""
    files = {
        FILE: json.dumps(current(), indent=1) + "\n",
        "operative_config.gin": gin.operative_config_str() + "\n",
    }
    for name, text in files.items():
        path = os.path.join(model_dir, name)  # noqa: PTH118
        with tf.io.gfile.GFile(path + ".new", "w") as file:
            file.write(text)
        tf.io.gfile.rename(path + ".new", path, overwrite=True)

"""`configuration.json` in a model directory: gin's values as text, the same for both engines.

    check_same("/models/tiny", {"run.batch_size": "4"}, allowed=False)     # lists what differs
    text({"run.batch_size": "4"})                                          # the file's content

A run compares its values with those with which training began. It needs no gin.
"""

import json
import posixpath
import re
from collections.abc import Mapping

from t0.config import masking
from t0.errors import UserError, short_reason
from t0.files import paths
from t0.files.untrusted import parsed_json

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
    # Read only at the first start, which reads the initial checkpoint.
    r"|init_checkpoint_variable_mapping\.\w+|should_load_variable\.\w+)$"
)


def text(values: Mapping[str, str]) -> str:
    """Returns the content of the file."""
    return json.dumps(values, indent=1) + "\n"


def compared(values: Mapping[str, str]) -> dict[str, str]:
    """Returns the values without those that may differ, and without macros that only these read."""
    values = {name: value for name, value in values.items() if not _MAY_DIFFER.search(name)}
    reached = {name for name in values if "." in name}  # a macro's name has no dot
    while True:
        text = " ".join(values[name] for name in reached)
        named = {name for name in re.findall(r"%([\w/]+)", text) if name in values} | reached
        if named == reached:
            return {name: value for name, value in values.items() if name in reached}
        reached = named


def check_same(model_dir: str, now: Mapping[str, str], *, allowed: bool) -> list[str]:
    """Compares a configuration with the one that `model_dir` records, if it records one.

    Args:
      model_dir: the run's model directory.
      now: parameter -> its value as text, credentials masked.
      allowed: whether differences are allowed, and only returned.

    Returns:
      the differences, one line each.

    Raises:
      UserError: if there are differences and they are not allowed; it lists them.
    """
    path = posixpath.join(model_dir, FILE)
    if not paths.exists(path):
        return []
    before = compared(_recorded_configuration(path))
    now = compared(now)
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


def _recorded_configuration(path: str) -> dict[str, str]:
    try:
        values = parsed_json(paths.read_bytes(path))
        if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
            raise ValueError("wanted an object of texts")
        return {name: masking.masked_value(name, value) for name, value in values.items()}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}, the record of the configuration with which training began, cannot be read: "
            f"{short_reason(error)}. To go on without comparing configurations, remove it"
        ) from error

"""Writes a specification's configuration files to the model directory, and compares them.

    check_same(spec, allowed=False)      # UserError if the run began with another configuration
    write(spec)                   # configuration.json, operative_config.gin, prompts.json

Both engines write the same files, and compare them with those of earlier starts in the same way.
"""

from collections.abc import Mapping

from t0.config.specification import RunSpec, read_value
from t0.errors import UserError, say, unknown_name
from t0.files import write_whole
from t0.files.untrusted import parsed_json
from t0.training import model_directory
from t0.training.model_directory import CONFIGURATION_FILE, PROMPTS_FILE

# The configuration files that a specification may contain, by their names in a model directory.
_RECORDS = (CONFIGURATION_FILE, PROMPTS_FILE, "operative_config.gin", "operative_config.t0.gin")


def check_same(spec: RunSpec, *, allowed: bool) -> None:
    """Compares the configuration with that in the model directory; prints the differences.

    Args:
      spec: a training run.
      allowed: whether the configuration may differ from the configuration of an earlier start, with
        either engine.

    Raises:
      UserError: if the configuration differs although that is not allowed, or if a file of the
        specification has an unknown name.
    """
    for name in spec.records:
        if name not in _RECORDS:
            raise unknown_name("file in RunSpec.records", name, _RECORDS)
    if CONFIGURATION_FILE not in spec.records:
        return
    try:
        current = parsed_json(spec.records[CONFIGURATION_FILE])
    except ValueError as error:
        raise UserError(
            f"the run specification's records.{CONFIGURATION_FILE} is not JSON: {error}"
        ) from error
    current = read_value(current, Mapping[str, str], f"records.{CONFIGURATION_FILE}")
    for change in model_directory.check_same(spec.model_dir, current, allowed=allowed):
        say(f"changed:{change}")


def write(spec: RunSpec) -> None:
    """Writes the configuration files of the specification to the model directory."""
    for name, text in spec.records.items():
        if name == PROMPTS_FILE:
            model_directory.save_prompts(spec.model_dir, text, spec.inputs_vocabulary.file)
        else:
            write_whole(f"{spec.model_dir}/{name}", text)

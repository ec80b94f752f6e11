"""What must be the same in two starts of one run, as plain values in its checkpoints.

    settings(spec)["batch_sequences"]                       # 16
    differences({"seed": 0}, {"seed": 1})                   # ["seed: was 0, is 1"]

The number of steps, of processes and of microbatches, the files' places and what is evaluated may
differ, as in the loop on Mesh TensorFlow.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from t0.config.specification import RunSpec, read_value
from t0.errors import UserError, unknown_name
from t0.files import write_whole
from t0.files.untrusted import parsed_json
from t0.training import configuration_record

_OF_RUN = (
    "model",
    "lengths",
    "batch_sequences",
    "optimizer",
    "schedule",
    "clip_gradient_norm",
    "variable_filter",
)
_OF_DATA = ("mixture", "split", "ends_in_eos", "pack", "shuffle", "seed", "window_rows")


def settings(spec: RunSpec) -> dict[str, Any]:
    """Returns the settings of a training run that a later start must have, too."""
    run, data = dataclasses.asdict(spec), dataclasses.asdict(spec.data)
    found = {name: run[name] for name in _OF_RUN}
    found["data"] = {name: data[name] for name in _OF_DATA}
    found["rates"] = {task.name: task.rate for task in spec.data.tasks}
    return json.loads(json.dumps(found))  # as a checkpoint has them


def differences(before: Any, now: Any) -> list[str]:
    """Returns a line for each value that differs between two results of `settings`."""
    first, second = dict(_flat(before)), dict(_flat(now))
    return [
        f"{name}: was {first.get(name)!r:.60}, is {second.get(name)!r:.60}"
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name)
    ]


# What a specification may have of a model directory's files.
_RECORDS = (configuration_record.FILE, "operative_config.gin", "operative_config.t0.gin")


def save_records(spec: RunSpec, *, allowed: bool) -> None:
    """Compares the configuration with that of the model directory, and writes the run's records.

    Args:
      spec: a training run.
      allowed: whether the configuration may differ from that of an earlier start, by any engine.

    Raises:
      UserError: if it differs and may not, or a file of the specification has an unknown name.
    """
    for name in spec.records:
        if name not in _RECORDS:
            raise unknown_name("file in RunSpec.records", name, _RECORDS)
    if configuration_record.FILE in spec.records:
        try:
            now = parsed_json(spec.records[configuration_record.FILE])
        except ValueError as error:
            raise UserError(
                f"the run specification's records.{configuration_record.FILE} is not JSON: {error}"
            ) from error
        now = read_value(now, Mapping[str, str], f"records.{configuration_record.FILE}")
        for change in configuration_record.check_same(spec.model_dir, now, allowed=allowed):
            print(f"changed:{change}", flush=True)
    for name, text in spec.records.items():
        write_whole(f"{spec.model_dir}/{name}", text)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(part, Mapping | list) for part in value):
        for number, part in enumerate(value):
            yield from _flat(part, f"{name}[{number}]")
    else:
        yield name, value

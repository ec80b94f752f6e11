"""Writes a dataset with its own prompts, in the form that `T0_DATA_DIR` expects.

prompts = {"which": ("{{text}} ||| {{answer_choices[label]}}", "rain ||| snow")}
write_dataset(folder / "weather", prompts, {"train": [{"text": "wet", "label": 0}]})
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml


def write_dataset(
    folder: Path,
    prompts: Mapping[str, tuple[str, str | None]],
    splits: Mapping[str, Iterable[Mapping[str, Any]]],
) -> Path:
    """Writes `templates.yaml` and a JSON Lines file for each split; returns the folder.

    Args:
      folder: the folder to write. The name of the folder becomes the name of the dataset.
      prompts: name of a prompt -> its template, and its answer choices (None if it has none).
      splits: name of a split -> its rows.
    """
    write_templates(folder, prompts)
    for split, rows in splits.items():
        write_rows(folder / f"{split}.jsonl", rows)
    return folder


def write_templates(folder: Path, prompts: Mapping[str, tuple[str, str | None]]) -> Path:
    """Writes `templates.yaml` in promptsource's format; returns its path.

    Args:
      folder: the folder of the dataset.
      prompts: name of a prompt -> its template, and its answer choices (None if it has none).
    """
    templates = {}
    for name, (jinja, choices) in prompts.items():
        metadata = _Metadata(choices_in_prompt=False, metrics=["Accuracy"], original_task=True)
        templates[name] = _Template(
            id=name, name=name, jinja=jinja, answer_choices=choices, reference="", metadata=metadata
        )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "templates.yaml"
    path.write_text(yaml.dump({"templates": templates}), encoding="utf-8")
    return path


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Writes rows as JSON Lines; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


class _Template(yaml.YAMLObject):
    yaml_tag = "!Template"

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class _Metadata(yaml.YAMLObject):
    yaml_tag = "!TemplateMetadata"

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

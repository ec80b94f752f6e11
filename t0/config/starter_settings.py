"""Finds the starter folder that contains a path, and reads the settings that commands take from it.

    settings = find_starter_folder("tickets/model")       # None outside of starter folders
    settings.name, settings.path("cache")                 # ("tickets", "tickets/cache")
    fill_flags(flag_values, settings.flags())             # flags on the command line win

`t0 init` writes the settings to `starter.json` in the starter folder. A path belongs to a starter
folder if `starter.json` is in the path itself, in its parent or in the parent's parent. So `model`
and `data/tickets` inside a starter folder belong to it.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t0.config.plain_data import Tokens, read_plain
from t0.errors import UserError, reading
from t0.files.paths import read_bytes
from t0.files.untrusted import check_bucket, checked_name, parsed_json

FILE = "starter.json"


@dataclasses.dataclass(frozen=True)
class StarterSettings:
    """The settings of a starter folder.

    Attributes:
      folder: the folder's path.
      name: the dataset's name, which is the prefix of the names of its tasks.
      vocabulary: the path of the SentencePiece model; None for T5's public model.
      lengths: feature -> sequence length in tokens.
      flags_of_init: flag of `t0 init` (`text`, `label`, `choices`) -> its value.
      written: file that `t0 init` wrote and that the user may edit -> SHA-256 of its content.
    """

    folder: str
    name: str
    vocabulary: str | None
    lengths: Mapping[str, Tokens]
    flags_of_init: Mapping[str, str] = dataclasses.field(default_factory=dict)
    written: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def path(self, *names: str) -> str:
        """Returns the path of a file or folder in the starter folder."""
        return str(Path(self.folder, *names))

    def flags(self) -> dict[str, Any]:
        """Returns flag -> value, for the flags that several commands share."""
        flags = {"module_import": ["t0.seqio_tasks"], "data_dir": [self.path("data")]}
        return flags | ({"vocab": self.vocabulary} if self.vocabulary else {})

    def text(self) -> str:
        """Returns the content of `starter.json`."""
        fields = dataclasses.asdict(self)
        del fields["folder"]
        if self.vocabulary and "://" not in self.vocabulary:  # commands run in any folder
            fields["vocabulary"] = os.path.abspath(self.vocabulary)  # noqa: PTH100
        return json.dumps(fields, indent=1) + "\n"


def find_starter_folder(path: str | Path) -> StarterSettings | None:
    """Returns the settings of the starter folder at or above a path; None if there is none.

    Raises:
      UserError: the folder's `starter.json` is malformed, its name is not safe in a path, or its
        vocabulary is in a bucket that the command line does not name.
    """
    if "://" in str(path):
        return None
    path = Path(os.path.expanduser(path))  # noqa: PTH111 (it accepts any text)
    for folder in (path, *list(path.parents)[:2]):
        if os.path.isfile(folder / FILE):  # noqa: PTH113 (as above)
            return _read(folder)
    return None


def _read(folder: Path) -> StarterSettings:
    path = folder / FILE
    with reading(path):
        content = read_bytes(path)
    try:
        fields = {**parsed_json(content), "folder": str(folder)}
        settings = read_plain(fields, StarterSettings, FILE)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{path} is malformed ({error}): restore it, or delete it and set all flags yourself"
        ) from error
    checked_name(settings.name, "dataset", path)  # a part of paths that `--update` writes
    check_bucket(settings.vocabulary or "", path, f"add --vocab={settings.vocabulary}")
    return settings


def fill_flags(flag_values: Any, values: Mapping[str, Any]) -> None:
    """Sets absl flags as if the user had given them. Flags on the command line are not changed."""
    for name, value in values.items():
        if not flag_values[name].present:
            flag_values[name].parse(value)

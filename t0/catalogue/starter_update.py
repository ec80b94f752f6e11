"""Measures the lengths of a starter folder again, and replaces its rows and prompts by new ones.

    settings = find_starter_folder("reviews")
    with new_data(settings, plan, {"train": rows_again}) as staging:
        replaced = choose_files(settings, staging, replace_edited=False)
        lengths, notes = update(settings, staging, replaced, vocabulary=None, flags={})

A file of the folder is only replaced if it is missing, or if `t0 init` would now write other content
than before. If the user has edited such a file too, the user must agree (`replace_edited`). A
starter folder of an earlier version does not record its content, so that every file that differs
counts as edited.
"""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from t0.catalogue import starter_folder
from t0.config.starter_settings import FILE, StarterSettings
from t0.errors import UserError
from t0.files import publishing
from t0.files.paths import read_bytes


@contextlib.contextmanager
def new_data(
    settings: StarterSettings,
    plan: starter_folder.StarterFolder,
    splits: Mapping[str, starter_folder.Rows],
) -> Iterator[str]:
    """Writes rows and prompts as `t0 init` would, into a temporary folder next to the folder.

    Yields:
      the path of the temporary folder.
    """
    staging = f"{Path(settings.folder).absolute()}.{publishing.unfinished_tag()}"
    try:
        with publishing.writing(settings.folder):
            Path(staging, "data", settings.name).mkdir(parents=True)
        starter_folder.write_data(plan, staging, splits)
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def find_edited(settings: StarterSettings) -> list[str]:
    """Returns the files that differ from those that `t0 init` wrote, as far as it recorded them."""
    now = starter_folder.digests(settings.name, settings.folder)
    return [file for file in now if now[file] != settings.written.get(file, now[file])]


def choose_files(settings: StarterSettings, staging: str, *, replace_edited: bool) -> list[str]:
    """Returns the files of the folder that new files in `staging` replace.

    Raises:
      UserError: the user has edited one of these files, and `replace_edited` is False.
    """
    now = starter_folder.digests(settings.name, settings.folder)
    new = starter_folder.digests(settings.name, staging)
    changed = [f for f in new if new[f] not in (settings.written.get(f), now.get(f))]
    replaced = [file for file in new if file in changed or file not in now]
    edited = [f for f in replaced if f in now and now[f] != settings.written.get(f)]
    if edited and not replace_edited:
        raise UserError(
            f"{settings.folder}: the data changed, and --update would replace "
            f"{', '.join(replaced)}. Of these you edited {', '.join(edited)}: save a copy, and add "
            "--yes to replace them. To only measure lengths again, leave out the data"
        )
    return replaced


def update(
    settings: StarterSettings,
    staging: str | None,
    replaced: Sequence[str],
    *,
    vocabulary: str | None,
    flags: Mapping[str, str],
) -> tuple[dict[str, int], list[str]]:
    """Measures the lengths, replaces files, and writes the lengths to `starter.json`.

    If the lengths cannot be measured, no file is replaced.

    Args:
      settings: the settings of the folder.
      staging: the folder with the new files; None if no file is replaced.
      replaced: the files to replace.
      vocabulary: the path of the SentencePiece model, or None.
      flags: see `StarterSettings.flags_of_init`.

    Returns:
      see `starter_folder.measure`.
    """
    data = f"data/{settings.name}"
    templates, rows = (
        str(Path(staging if staging and file in replaced else settings.folder, file))
        for file in (f"{data}/templates.yaml", f"{data}/train.jsonl")
    )
    lengths, notes = starter_folder.measure(settings.name, templates, rows, vocabulary=vocabulary)
    # A file of an interrupted update is in the folder already, but not in `starter.json`.
    now = starter_folder.digests(settings.name, settings.folder)
    new = starter_folder.digests(settings.name, staging) if staging else {}
    written = {file: new[file] for file in new if file in replaced or new[file] == now[file]}
    with publishing.writing(settings.folder):
        for file in replaced:
            Path(settings.path(file)).parent.mkdir(parents=True, exist_ok=True)
            Path(staging, file).replace(settings.path(file))
    updated = dataclasses.replace(
        settings,
        vocabulary=vocabulary,
        lengths=lengths,
        flags_of_init=flags,
        written={**settings.written, **written},
    )
    publishing.write_whole(settings.path(FILE), updated.text())
    _remove_old_lengths(settings)
    return lengths, notes


def _remove_old_lengths(settings: StarterSettings) -> None:
    """Removes the line with the lengths that earlier versions wrote to `train.gin`."""
    path, line = Path(settings.path("train.gin")), json.dumps(dict(settings.lengths))
    text = read_bytes(str(path)).decode() if path.is_file() else ""
    shorter = text.replace(f"\nTASK_FEATURE_LENGTHS = {line}\n", "\n")
    if shorter != text:
        publishing.write_whole(str(path), shorter)

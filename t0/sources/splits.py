"""Opens the rows of a dataset's split, in data folders or on the Hugging Face hub.

    split = open_split("super_glue", "rte", "validation")
    split.num_rows, split.columns    # (277, ('premise', 'hypothesis', 'idx', 'label'))
    list(split.rows(0, 2))           # two dicts
    read_label_names(file)           # {"label": ("bad", "good")}, if the data names its labels

`open_split` searches the data folders (`t0.sources.folders`), then the folders of the user's
templates (`t0.sources.own_data`). If the dataset has other names (`t0.sources.schema`), these
folders are searched again under each of the other names. Finally, `open_split` searches the Hugging
Face hub (`t0.sources.hub`).
"""

import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from t0.errors import AbsentData, UserError, reading
from t0.files.untrusted import parsed_json, read_json
from t0.sources import hub, json_lines, readers
from t0.sources.absent_splits import AbsentSplit, absent_table
from t0.sources.folders import (
    DATA_DIR_VARIABLE,
    FILE_PATTERN,
    SplitFile,
    data_dirs,
    files_of,
    folders_for,
    local_splits,
)
from t0.sources.own_data import own_splits
from t0.sources.schema import (
    DEFAULT_SUBSET,
    OwnRow,
    RowView,
    features,
    is_withheld,
    other_names,
    row_view,
)


@dataclasses.dataclass(frozen=True)
class SplitRows:
    """The rows of one split, in their original order.

    An instance can be pickled if the data is local.

    Attributes:
      where: the file, folder or repository that contains the rows, for messages.
    """

    where: str
    _reader: readers.Reader
    _view: RowView
    _hiding: dict[str, bool] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order. All rows have the same columns."""
        return self._view.columns

    @functools.cached_property
    def num_rows(self) -> int:
        """The number of rows.

        The number is read from metadata, or counted without holding the data in memory.
        """
        return self._reader.count()

    def check_texts(self) -> None:
        """Checks that no row of a JSON file contains half of a surrogate pair.

        Raises:
        UserError: a row contains half of a surrogate pair. The message names the file and the row.
        """
        if isinstance(self._reader, json_lines.JsonLines):
            self._reader.check()

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
        """Yields the rows of `list(rows)[start:stop]` as plain Python values.

        Memory use does not grow with the file. The rows before `start` are skipped as cheaply as
        the format allows: they are not read in parquet and Arrow, and not parsed in JSON Lines.

        Raises:
          UserError: the file is malformed. The message names the line or row.
        """
        if start < 0 or (stop is not None and stop < 0):
            start, stop, _ = slice(start, stop).indices(self.num_rows)
        if stop is not None and stop <= start:
            return
        for index, row in enumerate(self._reader.rows(start, stop), start=start):
            try:
                row = self._view.row(row)
            except ValueError as error:
                raise UserError(f"{self.where}, row {index} (the first is 0): {error}.") from error
            if not self._view.needed:
                row = OwnRow(row)
                row.hides = self.hides_labels
            yield row

    def hides_labels(self, column: str) -> bool:
        """Returns whether -1 is the only label of a column.

        If so, -1 means that the label is withheld. Otherwise, -1 is a class. The function prints a
        note that says which is the case. The first call for a column reads the column's values
        until it finds a label other than -1.

        Args:
          column: the column's name in templates. If there is no such column, the column `label` is
            read.
        """
        stored = {name.replace("-", "_"): name for name in self.columns}
        name = stored.get(column, "label")
        if name not in self._hiding:
            self._hiding[name] = all(
                is_withheld(row.get(name)) for row in self._reader.rows(0, None)
            )
            _print_label_note(self.where, name, self._hiding[name])
        return self._hiding[name]


@functools.lru_cache(maxsize=1024)  # prints each note only once
def _print_label_note(where: str, column: str, hides: bool) -> None:
    how = (
        "hides the label, since the split has no other label"
        if hides
        else "is a class, since the split has other labels"
    )
    print(f"note: {where}: -1 in the column '{column}' {how}", file=sys.stderr)


def open_split(dataset: str, subset: str | None, split: str) -> SplitRows:
    """Opens the rows of a split.

    Args:
      dataset: the name of one of T0's datasets, of one of the user's own datasets, or of a hub
        repository with its owner.
      subset: the subset; None or "default" for a dataset without subsets.
      split: the dataset's name of the split, such as "validation", or "dev_r1" in anli.

    Raises:
      AbsentData: the rows were not found. The message lists the places that were searched, and says
        how to fix the problem.
      UserError: the rows were found but cannot be read.
    """
    subset = None if subset == DEFAULT_SUBSET else subset
    dirs = data_dirs()
    if local := _find_local(dirs, dataset, subset, split):
        file, columns = local
        reader = readers.reader_for(file.kind, (file.path,), columns)
        return _view_rows(str(file.path), reader, dataset, subset)
    faults = []
    for name, subset_name in [(dataset, subset), *other_names(dataset, subset)]:
        fault = hub.why_not_tried(name)
        if fault:
            faults.append(f"the Hugging Face hub: {fault}")
            break
        reader, tried = hub.open_on_hub(name, subset_name, split)
        faults += tried
        if reader:
            rows = _view_rows(reader.where, reader, dataset, subset)
            if not rows._view.missing:
                return rows
            faults.append(f"{reader.where}: has no columns {', '.join(rows._view.missing)}")
    raise _make_absent_error(dirs, dataset, subset, split, faults)


def local_files(dataset: str, subset: str | None, split: str) -> list[Path]:
    """Returns the files in the data folders that `open_split` would read.

    If `open_split` would read the hub, the result is [].

    Raises:
      UserError: two files in one folder are the same split.
    """
    subset = None if subset == DEFAULT_SUBSET else subset
    local = _find_local(data_dirs(), dataset, subset, split)
    return files_of(local[0]) if local else []


def _find_local(
    dirs: list[Path], dataset: str, subset: str | None, split: str
) -> tuple[SplitFile, Any] | None:
    """Returns the first location of a split in the data folders, and its columns' types."""
    for name, subset_name in [(dataset, subset), *other_names(dataset, subset)]:
        if file := _list_local(dirs, name, subset_name).get(split):
            return file, features(name, subset_name)
    return None


class SplitSource(Protocol):
    """An object that opens the rows of a task: a prompted task, or the task's SeqIO data source."""

    dataset: str
    subset: str | None
    split_mapping: dict[str, str]

    def open(self, split: str) -> SplitRows:
        """Opens the rows of the task's split."""


def without_absent(
    sources: Mapping[str, SplitSource | None], split: str, *, skip: bool
) -> list[str]:
    """Returns the names of the tasks whose data is available.

    Prints the names of the tasks whose data is missing.

    Args:
      sources: name of a task -> the object that opens the task's rows. If the object is None, the
        task's data is not checked.
      split: the split of the tasks.
      skip: whether to skip tasks without data instead of raising an error.

    Raises:
      UserError: data is missing, and `skip` is False or no task is left.
    """
    absent: dict[tuple[str, ...], list[str]] = {}
    present, opened, errors = [], set(), []
    for name, source in sources.items():
        key = source and (source.dataset, source.subset or "", source.split_mapping[split])
        if key and key not in opened and key not in absent:
            try:
                source.open(split)
                opened.add(key)
            except AbsentData as error:
                errors.append(error)
                absent[key] = []
        absent.get(key, present).append(name)
    titles = {"/".join(filter(None, key[:2])) + f", {key[2]}": absent[key] for key in absent}
    if absent and (not skip or not present):
        advice = f" Or leave these {sum(map(len, absent.values()))} tasks out: --skip_absent."
        missing = [each for error in errors for each in error.splits]
        named = f": {', '.join(titles)}. {errors[0]}" if len(missing) < 2 else ""
        table = "" if named else f":\n{absent_table(missing)}"
        raise UserError(
            f"the data of {len(absent)} dataset(s) is not here{named or table}"
            + (advice if present else "")
        )
    for title, tasks in titles.items():
        print(f"left out: {title}: no data here ({len(tasks)} tasks)", file=sys.stderr)
    return present


def available_splits(dataset: str, subset: str | None = None) -> dict[str, str]:
    """Returns split -> location for a dataset's splits on this machine, without opening the data.

    Raises:
      UserError: two files in one folder are the same split.
    """
    subset = None if subset == DEFAULT_SUBSET else subset
    dirs = data_dirs()
    splits: dict[str, str] = {}
    for name, subset_name in [(dataset, subset), *other_names(dataset, subset)]:
        local = _list_local(dirs, name, subset_name)
        splits = {split: str(data.path) for split, data in local.items()} | splits
    return splits


def _list_local(dirs: list[Path], dataset: str, subset: str | None) -> dict[str, SplitFile]:
    return own_splits(dirs, dataset, subset) | local_splits(dirs, dataset, subset)


def _view_rows(where: str, reader: readers.Reader, dataset: str, subset: str | None) -> SplitRows:
    return SplitRows(where, reader, row_view(dataset, subset, reader.columns()))


def _make_absent_error(
    dirs: list[Path], dataset: str, subset: str | None, split: str, faults: list[str]
) -> AbsentData:
    names = [(dataset, subset), *other_names(dataset, subset)]
    locations = [f"{folder}" for name in names for folder in folders_for(dirs, *name)]
    if not dirs:
        locations.append(f"no data folder: neither --data_dir nor {DATA_DIR_VARIABLE} is set")
    other_splits = sorted({split for name in names for split in _list_local(dirs, *name)})
    example = (dirs[0] if dirs else Path("DIR")) / dataset / (subset or DEFAULT_SUBSET)
    lines = [
        f"no rows for the dataset '{dataset}', subset '{subset or DEFAULT_SUBSET}', split"
        f" '{split}'. Looked in:",
        *(f"  {location}" for location in locations + faults),
        f"Put the rows at {example / split}.jsonl (any {FILE_PATTERN}), or set their folder with"
        f" --data_dir or {DATA_DIR_VARIABLE}.",
    ]
    if other_splits:
        lines.insert(-1, f"There are other splits here: {', '.join(other_splits)}.")
    if dataset in hub.HUB and hub.HUB[dataset].by_hand:
        lines.append(hub.HUB[dataset].by_hand)
    return AbsentData("\n".join(lines), [AbsentSplit(dataset, subset, split, tuple(faults))])


def read_label_names(file: SplitFile) -> dict[str, tuple[str, ...]]:
    """Returns column -> names of the column's labels. If no names are stored, the result is empty.

    The first name belongs to label 0. The `datasets` library stores the names in the metadata of
    Parquet and Arrow files, or in `dataset_info.json` next to the files.

    Raises:
      UserError: the stored description of the columns cannot be read.
    """
    folder = file.path if file.kind == "saved" else file.path.parent
    if readers.FORMATS[file.kind].columns == "schema":
        content = readers.reader_for(file.kind, (file.path,)).metadata().get(b"huggingface")
        if content:
            with reading(file.path, ValueError):
                value = parsed_json(content)
            return _label_names_of(
                value.get("info") if isinstance(value, dict) else None, file.path
            )
    info = folder / "dataset_info.json"
    return _label_names_of(read_json(info), info) if info.is_file() else {}


def _label_names_of(info: Any, path: Path) -> dict[str, tuple[str, ...]]:  # noqa: ANN401 (of a file)
    features = info.get("features") if isinstance(info, dict) else None
    label_names = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
            continue
        names = feature.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(
                f"{path}: the names of '{column}' must be a list of texts: {names!r:.80}"
            )
        label_names[column] = tuple(names)
    return label_names

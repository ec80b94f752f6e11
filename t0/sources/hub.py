"""Reads rows of T0's datasets, and streams documents, from the Hugging Face hub.

    rows, faults = open_on_hub("glue", "mrpc", "validation")     # nyu-mll/glue, config mrpc
    texts = HubTexts("allenai/c4", "en", splits=("train", "validation"))
    texts.shards("train")        # (HubShard('train', 0, 1024), ...), requested from the hub
    next(texts.documents(texts.shards("train")[5]))

Dataset scripts are never run (the library `datasets` rejects scripts since version 4.0). If the
main revision of a repository is a script, the repository's parquet export (revision
refs/convert/parquet) is read instead. The library downloads a split once into its own cache and
memory-maps it. If HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set, or the hub is unreachable, this
module requests no data and returns the reason immediately. (The library itself would retry for 23
seconds.)

For streaming, a shard is one of the dataset's files. Only `shards` and `documents` use the network,
so tasks can be registered offline. To resume in the middle of a file, the stream reads the file
again from its start.
"""

import csv
import dataclasses
import functools
import importlib.resources
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from t0.errors import AbsentData, UserError, describe_remote, short_reason

PARQUET_REVISION = "refs/convert/parquet"
_REACH_SECONDS = 5
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


class HubRow(NamedTuple):
    """The location of one of T0's datasets on the hub.

    Attributes:
      repos: the repository, followed by copies. If the repository cannot be read, the copies are
        tried. The first repository of samsum was withdrawn. The copy of social_i_qa equals the
        original in all rows and columns (EleutherAI/lm-evaluation-harness#3943).
      by_hand: how to get the dataset by hand, if only its owners distribute it; otherwise empty.
    """

    repos: tuple[str, ...]
    by_hand: str


def _read_table() -> dict[str, HubRow]:
    """Reads `facts/hub.csv`: dataset -> its location on the hub.

    The hub was unreachable when this table was written. So the names come from the code of other
    projects, from 2024 to 2026. If that code reads the first repository as parquet or as a script,
    the column `checked` is "parquet" or "script". If that code only mentions the repository, the
    column is "name".
    """
    file = importlib.resources.files("t0.sources").joinpath("facts", "hub.csv")
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return {
        row["dataset"]: HubRow(tuple(row["repositories"].split("|")), row["by_hand"])
        for row in rows
    }


HUB = _read_table()


@dataclasses.dataclass(frozen=True)
class HubRows:
    """A split that the `datasets` library has loaded, with the methods of `readers.Reader`."""

    dataset: Any
    where: str

    def columns(self) -> tuple[str, ...]:
        """Returns the names of the columns as stored."""
        return tuple(self.dataset.column_names)

    def count(self) -> int:
        """Returns the number of rows."""
        return self.dataset.num_rows

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """Returns an iterator over the rows. A sequence of records becomes a dict of lists."""
        from t0.sources.arrow_readers import rows_between

        end = self.count() if stop is None else min(stop, self.count())
        if start >= end:
            return iter(())
        selected = self.dataset.select(range(start, end))
        tables = selected.with_format("arrow").iter(batch_size=1024)
        batches = (batch for table in tables for batch in table.to_batches())
        return rows_between(self.where, batches, 0, None)


def why_not_tried(dataset: str) -> str | None:
    """Returns the reason why a dataset is not requested from the hub; None if it is requested."""
    for variable in _OFFLINE_VARIABLES:
        if os.environ.get(variable, "").upper() in ("1", "TRUE", "YES", "ON"):
            return f"not tried, since {variable} is set"
    if dataset not in HUB and "/" not in dataset:
        return (
            f"not tried, since '{dataset}' is not a hub name (hub names have an owner: owner/name)"
        )
    fault = unreachable()
    return fault and f"out of reach: {fault}"


def open_on_hub(dataset: str, subset: str | None, split: str) -> tuple[HubRows | None, list[str]]:
    """Opens a split on the hub.

    Returns:
      (rows, reasons). The rows are None if no repository has them. There is a reason for each
      repository that could not be read.
    """
    repos = HUB[dataset].repos if dataset in HUB else (dataset,)
    faults = []
    for i, repo in enumerate(repos):
        # A copy contains only this dataset, in a config that may have any name.
        config = subset if i == 0 else None
        try:
            rows = _load(repo, config, split)
        except _faults() as error:
            faults.append(f"hub repository {repo}: {describe_remote(error)}")
            continue
        label = ", ".join(filter(None, (config, split)))
        return HubRows(rows, f"hub repository {repo} ({label})"), faults
    return None, faults


def open_stream(repo: str, config: str | None, split: str) -> Any:  # noqa: ANN401
    """Opens a split as an `IterableDataset` of the library `datasets`, which streams its files.

    Raises:
      AbsentData: the split cannot be opened. The message gives the reason.
    """
    where = f"hub repository {repo} ({', '.join(filter(None, (config, split)))})"
    fault = why_not_tried(repo)
    if not fault:
        try:
            return _load(repo, config, split, streaming=True)
        except _faults() as error:
            fault = describe_remote(error)
    raise AbsentData(
        f"{where} cannot be streamed: {fault}. Streaming needs the network. Or put your own text "
        "into the folder text/ of a data folder."
    )


def streamed(where: str, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the rows. Turns a connection error into a UserError whose message names `where`."""
    while True:
        try:
            row = next(rows, None)
        except _faults() as error:
            raise UserError(
                f"{where}: the stream broke off: {short_reason(error)}. Start again: a run resumes "
                "from its last checkpoint."
            ) from error
        if row is None:
            return
        yield row


def _load(repo: str, config: str | None, split: str, **how: bool) -> Any:  # noqa: ANN401
    import datasets

    # Without this prefix, if the working directory has a folder of this name, the library would
    # read that folder.
    path = f"hf://datasets/{repo}"
    try:
        return datasets.load_dataset(path, config, split=split, **how)
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
    # The parquet export has a folder for each config. If the dataset has no subsets, there is only
    # one folder, which may have any name.
    files = {split: f"{config or '*'}/{split}/*.parquet"}
    return datasets.load_dataset(
        path, revision=PARQUET_REVISION, data_files=files, split=split, **how
    )


def _faults() -> tuple[type[Exception], ...]:
    """Returns the errors that the library raises if data is missing or the connection fails."""
    import datasets.exceptions
    import httpx

    return (OSError, ValueError, RuntimeError, httpx.HTTPError, datasets.exceptions.DatasetsError)


def unreachable() -> str | None:
    """Returns the reason why the hub is unreachable, or None if it answers within seconds."""
    import httpx
    from huggingface_hub import constants

    try:
        httpx.head(constants.ENDPOINT, timeout=_REACH_SECONDS)
    except (httpx.HTTPError, OSError) as error:
        return f"{constants.ENDPOINT}: {str(error) or type(error).__name__}"
    return None


class HubShard(NamedTuple):
    """One file of a split: number `index` (from 0) of `count` files."""

    split: str
    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.split}-{self.index:05d}-of-{self.count:05d}"


class HubTexts:
    """The documents of a dataset on the hub.

    Args:
      repo: the repository, with its owner.
      config: the configuration, or None.
      splits: the names of the dataset's splits.
      column: the name of the column that contains the documents' text.
    """

    def __init__(
        self, repo: str, config: str | None, *, splits: tuple[str, ...], column: str = "text"
    ) -> None:
        self.repo, self.config, self.column, self.splits = repo, config, column, splits
        self._stream = functools.cache(functools.partial(open_stream, repo, config))

    def shards(self, split: str) -> tuple[HubShard, ...]:
        """Returns the files of a split.

        Raises:
          AbsentData: the hub is unreachable, or has no such dataset.
        """
        count = self._stream(split).num_shards
        return tuple(HubShard(split, index, count) for index in range(count))

    def documents(self, shard: HubShard) -> Iterator[str]:
        """Yields the documents of a file.

        Raises:
          UserError: the file cannot be read, or its rows do not have the text column.
        """
        rows = self._stream(shard.split).shard(num_shards=shard.count, index=shard.index)
        where = f"hub repository {self.repo}, {shard}"
        for row in streamed(where, iter(rows)):
            text = row.get(self.column)
            if not isinstance(text, str):
                raise UserError(
                    f"{where}: no text in the column '{self.column}'; the columns are: "
                    f"{', '.join(row)}."
                )
            if text.strip():
                yield text

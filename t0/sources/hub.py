"""The Hugging Face hub: the name of every T0 dataset there today, its rows, and streamed documents.

    rows, faults = open_on_hub("glue", "mrpc", "validation")     # nyu-mll/glue, config mrpc
    texts = HubTexts("allenai/c4", "en", splits=("train", "validation"))
    texts.shards("train")                        # asks the hub: (HubShard('train', 0, 1024), ...)
    next(texts.documents(texts.shards("train")[5]))

A dataset script is never run: `datasets` refuses them since 4.0, and where a repository's main
revision is one, its parquet export (revision refs/convert/parquet) is read. The library downloads
a split once into its own cache and maps it into memory. With HF_HUB_OFFLINE or HF_DATASETS_OFFLINE
set, or the hub out of reach, nothing is tried, and the reason is returned at once: the library
by itself would retry for 23 seconds.

A shard of streamed documents is one of the dataset's files. Nothing is asked before `shards`, so
that registering needs no network. To go on in the middle of a file, its beginning is read again.
"""

import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from t0.errors import AbsentData, UserError

PARQUET_REVISION = "refs/convert/parquet"
_REACH_SECONDS = 5
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


class HubRow(NamedTuple):
    """Where one of T0's datasets is on the hub.

    Attributes:
      repos: its repository, and copies to try after it.
      seen: how sure the first name is, since the hub was out of reach when this was written:
        "parquet" or "script" for what other projects' code of 2024 to 2026 reads it as,
        "name" where only the name was seen.
      by_hand: for a dataset that its owners hand out themselves, what to do.
    """

    repos: tuple[str, ...]
    seen: str
    by_hand: str = ""


_STORY_CLOZE = (
    "Story Cloze is handed out by its authors on request (https://cs.rochester.edu/nlp/rocstories/)"
    ": turn its csv into the columns story_id, input_sentence_1 to 4, sentence_quiz1,"
    " sentence_quiz2 and answer_right_ending."
)
_JIGSAW = (
    "Jigsaw's data must be downloaded from Kaggle by hand"
    " (https://www.kaggle.com/c/jigsaw-toxic-comment-classification-challenge)."
)

HUB = {
    "adversarial_qa": HubRow(("UCLNLP/adversarial_qa",), "parquet"),
    "ag_news": HubRow(("fancyzhx/ag_news",), "parquet"),
    "ai2_arc": HubRow(("allenai/ai2_arc",), "parquet"),
    "amazon_polarity": HubRow(("fancyzhx/amazon_polarity",), "parquet"),
    "anli": HubRow(("facebook/anli",), "parquet"),
    "app_reviews": HubRow(("sealuzh/app_reviews",), "parquet"),
    "cnn_dailymail": HubRow(("abisee/cnn_dailymail",), "parquet"),
    "common_gen": HubRow(("allenai/common_gen",), "parquet"),
    "cos_e": HubRow(("Salesforce/cos_e",), "name"),
    "cosmos_qa": HubRow(("allenai/cosmos_qa", "Samsoup/cosmos_qa"), "script"),
    "crows_pairs": HubRow(("nyu-mll/crows_pairs",), "script"),
    "dbpedia_14": HubRow(("fancyzhx/dbpedia_14",), "parquet"),
    "dream": HubRow(("dataset-org/dream",), "script"),
    "duorc": HubRow(("ibm/duorc",), "parquet"),
    "gigaword": HubRow(("Harvard/gigaword",), "script"),
    "glue": HubRow(("nyu-mll/glue",), "parquet"),
    "hellaswag": HubRow(("Rowan/hellaswag",), "parquet"),
    "imdb": HubRow(("stanfordnlp/imdb",), "parquet"),
    "jigsaw_toxicity_pred": HubRow(("google/jigsaw_toxicity_pred",), "script", _JIGSAW),
    "kilt_tasks": HubRow(("facebook/kilt_tasks",), "parquet"),
    "multi_news": HubRow(("alexfabbri/multi_news",), "script"),
    "openbookqa": HubRow(("allenai/openbookqa",), "parquet"),
    "paws": HubRow(("google-research-datasets/paws",), "name"),
    "piqa": HubRow(("ybisk/piqa", "baber/piqa"), "script"),
    "qasc": HubRow(("allenai/qasc",), "parquet"),
    "quail": HubRow(("textmachinelab/quail",), "script"),
    "quarel": HubRow(("community-datasets/quarel",), "parquet"),
    "quartz": HubRow(("allenai/quartz",), "parquet"),
    "quoref": HubRow(("allenai/quoref",), "script"),
    "race": HubRow(("ehovy/race",), "parquet"),
    "ropes": HubRow(("allenai/ropes",), "parquet"),
    "rotten_tomatoes": HubRow(("cornell-movie-review-data/rotten_tomatoes",), "name"),
    # The first was withdrawn; the second is a copy.
    "samsum": HubRow(("Samsung/samsum", "knkarthick/samsum"), "script"),
    "sciq": HubRow(("allenai/sciq",), "parquet"),
    # The copy equals the original on all rows and columns (EleutherAI/lm-evaluation-harness#3943).
    "social_i_qa": HubRow(("allenai/social_i_qa", "lighteval/siqa"), "script"),
    "squad_v2": HubRow(("rajpurkar/squad_v2",), "parquet"),
    "story_cloze": HubRow(("LSDSem/story_cloze",), "script", _STORY_CLOZE),
    "super_glue": HubRow(("aps/super_glue",), "script"),
    "trec": HubRow(("CogComp/trec",), "script"),
    "trivia_qa": HubRow(("mandarjoshi/trivia_qa",), "parquet"),
    "web_questions": HubRow(("stanfordnlp/web_questions",), "parquet"),
    "wiki_bio": HubRow(("michaelauli/wiki_bio",), "script"),
    "wiki_hop": HubRow(("QAngaroo/wiki_hop", "MoE-UNC/wikihop"), "script"),
    "wiki_qa": HubRow(("microsoft/wiki_qa",), "parquet"),
    "wino_bias": HubRow(("uclanlp/wino_bias",), "parquet"),
    "winogrande": HubRow(("allenai/winogrande",), "parquet"),
    "wiqa": HubRow(("allenai/wiqa",), "script"),
    "xsum": HubRow(("EdinburghNLP/xsum",), "script"),
    "yelp_review_full": HubRow(("Yelp/yelp_review_full",), "name"),
}


@dataclasses.dataclass(frozen=True)
class HubRows:
    """A split as the `datasets` library holds it: a reader like those of `t0.sources.readers`."""

    dataset: Any
    where: str

    def columns(self) -> tuple[str, ...]:
        """The columns as stored."""
        return tuple(self.dataset.column_names)

    def count(self) -> int:
        """The number of rows."""
        return self.dataset.num_rows

    def rows(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """The rows, as Arrow has them: a sequence of records is a dict of lists."""
        from t0.sources.arrow_readers import rows_between

        end = self.count() if stop is None else min(stop, self.count())
        if start >= end:
            return iter(())
        wanted = self.dataset.select(range(start, end))
        tables = wanted.with_format("arrow").iter(batch_size=1024)
        return rows_between((batch for table in tables for batch in table.to_batches()), 0, None)


def why_not_tried(dataset: str) -> str | None:
    """Returns why the hub cannot have this dataset or is not to be asked, None when it is."""
    for variable in _OFFLINE_VARIABLES:
        if os.environ.get(variable, "").upper() in ("1", "TRUE", "YES", "ON"):
            return f"not tried, since {variable} is set"
    if dataset not in HUB and "/" not in dataset:
        return f"not tried, since '{dataset}' is no hub name (those have an owner: owner/name)"
    fault = _unreachable()
    return fault and f"out of reach: {fault}"


def open_on_hub(dataset: str, subset: str | None, split: str) -> tuple[HubRows | None, list[str]]:
    """Opens a split on the hub.

    Returns:
      The rows, or None; and, for each repository that was tried without success, why.
    """
    repos = HUB[dataset].repos if dataset in HUB else (dataset,)
    faults = []
    for i, repo in enumerate(repos):
        # A copy holds one dataset, under whatever config name.
        config = subset if i == 0 else None
        try:
            rows = _load(repo, config, split)
        except _faults() as error:
            text = str(error).strip().splitlines() or [type(error).__name__]
            faults.append(f"hub repository {repo}: {text[0]}")
            continue
        label = ", ".join(filter(None, (config, split)))
        return HubRows(rows, f"hub repository {repo} ({label})"), faults
    return None, faults


def open_stream(repo: str, config: str | None, split: str) -> Any:  # noqa: ANN401
    """Opens a split as the library's `IterableDataset`, read file by file and never downloaded.

    Raises:
      AbsentData: it is not to be had; the text says why.
    """
    where = f"hub repository {repo} ({', '.join(filter(None, (config, split)))})"
    fault = why_not_tried(repo)
    if not fault:
        try:
            return _load(repo, config, split, streaming=True)
        except _faults() as error:
            fault = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise AbsentData(
        f"{where} cannot be streamed: {fault}. It needs the network while it is read; or put text "
        "of your own into the folder text/ of a data folder."
    )


def streamed(where: str, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the rows; a fault of the connection is a UserError that begins with `where`."""
    while True:
        try:
            row = next(rows, None)
        except _faults() as error:
            text = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(
                f"{where}: the stream broke off: {text[0]}. Start again: a run goes on from its "
                "last checkpoint."
            ) from error
        if row is None:
            return
        yield row


def _load(repo: str, config: str | None, split: str, **how: bool) -> Any:  # noqa: ANN401
    import datasets

    # The prefix keeps a folder of this name in the working directory from being taken.
    path = f"hf://datasets/{repo}"
    try:
        return datasets.load_dataset(path, config, split=split, **how)
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
    # The export has a folder for each config; a dataset without subsets has one, of any name.
    files = {split: f"{config or '*'}/{split}/*.parquet"}
    return datasets.load_dataset(
        path, revision=PARQUET_REVISION, data_files=files, split=split, **how
    )


def _faults() -> tuple[type[Exception], ...]:
    """What the library raises when a dataset, config, split or connection is not there."""
    import datasets.exceptions
    import httpx

    return (OSError, ValueError, RuntimeError, httpx.HTTPError, datasets.exceptions.DatasetsError)


def _unreachable() -> str | None:
    """Asks the hub once, within seconds, whether it is there; returns what is wrong, or None."""
    import httpx
    from huggingface_hub import constants

    try:
        httpx.head(constants.ENDPOINT, timeout=_REACH_SECONDS)
    except (httpx.HTTPError, OSError) as error:
        return f"{constants.ENDPOINT}: {str(error) or type(error).__name__}"
    return None


class HubShard(NamedTuple):
    """File `index` of the `count` files of a split."""

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
      splits: which splits it has.
      column: the column of the text.
    """

    def __init__(
        self, repo: str, config: str | None, *, splits: tuple[str, ...], column: str = "text"
    ) -> None:
        self.repo, self.config, self.column = repo, config, column
        self._splits = splits
        self._stream = functools.cache(self._opened)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are."""
        return self._splits

    def shards(self, split: str) -> tuple[HubShard, ...]:
        """The files of a split.

        Raises:
          AbsentData: the hub cannot be reached, or has no such dataset.
        """
        count = self._stream(split).num_shards
        return tuple(HubShard(split, index, count) for index in range(count))

    def documents(self, shard: HubShard) -> Iterator[str]:
        """Yields the documents of a file.

        Raises:
          UserError: its rows have no such column, or it cannot be read.
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

    def _opened(self, split: str) -> Any:  # noqa: ANN401
        return open_stream(self.repo, self.config, split)

r"""Builds the SeqIO tasks of the recipes: documents, question answering and translation.

    for name, arguments in pretraining_definitions("text", FolderTexts(Path("D/text"))).items():
        seqio.TaskRegistry.add(name, **arguments)    # text_span_corruption, text_prefix_lm, text_lm

    arguments = question_task(question_splits(Path("qa/squad")))
    seqio.TaskRegistry.add("qa_squad", **arguments)
    # {"inputs": "Which team won?\nThe Broncos defeated ...", "targets": "Denver Broncos",
    #  "answers": ["Denver Broncos", ...], "id": ..., "question": ..., "context": ...}

    arguments = translation_task(folder_splits(Path("mt")), "en", "de")
    seqio.TaskRegistry.add("mt_en_de", **arguments)
    # {"inputs": "translate English to German: Good morning.", "targets": "Guten Morgen."}

Documents: the preprocessing steps are those of T5's tasks `c4_v220_span_corruption`,
`c4_v220_prefix_lm` and `c4_v220_full_lm`. Documents are tokenized before the caching point. The
random steps of an objective come after the caching point, so that each epoch draws again. Training
uses a different implementation of these steps (`t0.feeding.pretraining`), which produces the same
tokens.

Questions: question and context are separated by a line break, which T5's vocabulary reads as a
space. UnifiedQA's checkpoints were trained with a backslash and an n instead. For these
checkpoints, set gin's `qa.separator = ' \\n '`. If there is no context, the input is only the
question (closed book). The target is the first answer, or the empty text if there is no answer.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import babel
import numpy as np

from t0.compat import gin, seqio, t5_preprocessors, tf
from t0.errors import UserError, remembered
from t0.sources.folders import SplitFile, files_of
from t0.sources.hub import HubTexts
from t0.sources.questions import count_pairs, count_questions, read_pairs, read_questions
from t0.sources.texts import FolderTexts
from t0.tasks.metrics import Bleu, squad_metrics
from t0.tasks.ordered_source import TEXT, TEXTS, OrderedSource, Record
from t0.tasks.vocabulary import default_vocabulary, t5_features, tokenized


class RecordSource(OrderedSource):
    """A SeqIO data source that yields the records of a recipe.

    Args:
      read: a function that returns the records of a split. Each call starts at the first record.
      count: a function that returns the number of records of a split.
      splits: the names of the splits.
      signature: field of a record -> `TEXT` or `TEXTS`.
      notes: a function that returns notes about a split. The user sees these notes before a run.
      files: a function that returns the files of a split.
    """

    def __init__(
        self,
        *,
        read: Callable[[str], Iterable[Record]],
        count: Callable[[str], int],
        splits: Sequence[str],
        signature: Mapping[str, tf.TensorSpec],
        notes: Callable[[str], Sequence[str]] = lambda split: (),
        files: Callable[[str], Sequence[Path]] = lambda split: (),
    ) -> None:
        self._read = read
        self._count = count
        self.signature = signature
        self.notes = notes
        self.data_files = files
        super().__init__(splits=tuple(splits))

    def num_input_examples(self, split: str) -> int:
        """Returns the number of records of a split; this may read its files."""
        return self._count(split)

    def records(self, split: str) -> Iterator[Record]:
        """Yields the records of a split.

        Raises:
          UserError: if the split does not exist, or its data is malformed.
        """
        if split not in self.splits:
            raise UserError(
                f"there is no split '{split}'; the splits are: {', '.join(self.splits)}"
            )
        yield from self._read(split)


class TextSource(OrderedSource):
    """A SeqIO data source that yields documents in order, as records `{"text": str}`.

    Args:
      texts: the documents.
    """

    def __init__(self, texts: FolderTexts | HubTexts) -> None:
        self.texts = texts
        super().__init__(splits=texts.splits)

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns a name for each shard."""
        return [str(shard) for shard in self.texts.shards(split)]

    def data_files(self, split: str) -> Sequence[Path]:
        """Returns the files with a split's documents; an empty list for data from the hub."""
        return self.texts.files(split) if isinstance(self.texts, FolderTexts) else ()

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        """Returns the documents of a split, or of some of its shards.

        Args:
          shuffle: whether to shuffle the shards.
          seed: the seed of the shuffling.
          shard_info: if given, only the shards `index`, `index + num_shards`, ... are read.
          unused: SeqIO's other arguments, which are ignored.
        """
        del unused
        with remembered():
            shards = list(self.texts.shards(split))
        if shard_info:
            if len(shards) < shard_info.num_shards:
                requested = f"{shard_info.num_shards} were requested"
                raise UserError(f"the split {split} has {len(shards)} shards, but {requested}")
            shards = shards[shard_info.index :: shard_info.num_shards]
        if shuffle:
            order = np.random.default_rng(None if seed is None else int(seed) % 2**63)
            shards = [shards[number] for number in order.permutation(len(shards))]

        def generate() -> Iterator[dict[str, str]]:
            with remembered():
                for shard in shards:
                    for text in self.texts.documents(shard):
                        yield {"text": text}

        return tf.data.Dataset.from_generator(
            generate, output_signature={"text": tf.TensorSpec((), tf.string)}
        )


# Name of an objective, with which a task's name ends -> (T5's steps after the caching point,
# whether the task has inputs).
OBJECTIVES: dict[str, tuple[tuple[Callable[..., Any], ...], bool]] = {
    "span_corruption": (
        (t5_preprocessors.span_corruption, seqio.preprocessors.append_eos_after_trim),
        True,
    ),
    "prefix_lm": ((t5_preprocessors.prefix_lm, seqio.preprocessors.append_eos_after_trim), True),
    "lm": ((t5_preprocessors.full_lm,), False),
}


def pretraining_definitions(
    prefix: str, texts: FolderTexts | HubTexts
) -> dict[str, dict[str, Any]]:
    """Returns name -> keyword arguments of `seqio.TaskRegistry.add` for the tasks over `texts`.

    Args:
      prefix: the prefix of the task names.
      texts: the documents.
    """
    source = TextSource(texts)
    return {
        f"{prefix}_{objective}": pretraining_task(
            source, steps, ("inputs", "targets") if with_inputs else ("targets",)
        )
        for objective, (steps, with_inputs) in OBJECTIVES.items()
    }


def pretraining_task(
    source: TextSource, steps: Sequence[Callable[..., Any]], features: Sequence[str]
) -> dict[str, Any]:
    """Returns the arguments of `seqio.TaskRegistry.add` for a task over documents.

    Args:
      source: the documents.
      steps: the preprocessors after the caching point.
      features: the names of the features.
    """
    feature = seqio.Feature(default_vocabulary(), add_eos=True, dtype=tf.int32)
    return {
        "source": source,
        "preprocessors": [
            functools.partial(t5_preprocessors.rekey, key_map={"inputs": None, "targets": "text"}),
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            *steps,
        ],
        "output_features": dict.fromkeys(features, feature),
        "metric_fns": [],
    }


_QUESTION_FIELDS = {
    **dict.fromkeys(("id", "question", "context", "inputs", "targets"), TEXT),
    "answers": TEXTS,
}


@gin.configurable("qa", module="t0")
def separator(separator: str = "\n") -> str:
    r"""Returns the text between question and context (gin: `qa.separator = '\n'`)."""
    return separator


def _question_records(splits: Mapping[str, SplitFile], split: str) -> Iterator[Record]:
    between = separator()
    for question in read_questions(splits[split]):
        behind = between + question.context if question.context else ""
        yield {
            "id": question.id,
            "question": question.question,
            "context": question.context,
            "answers": question.answers,
            "inputs": question.question + behind,
            "targets": question.answers[0] if question.answers else "",
        }


def postprocess_answer(
    output: str, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> str | list[str]:
    """Returns a prediction as stripped text, or a target as the list of accepted answers."""
    if not is_target:
        return output.strip()
    return [tf.compat.as_text(answer) for answer in example["answers"]]


class QuestionSource(RecordSource):
    """A SeqIO data source of the questions in a dataset's files."""

    def __init__(self, splits: Mapping[str, SplitFile]) -> None:
        super().__init__(
            read=functools.partial(_question_records, splits),
            count=functools.cache(lambda split: count_questions(splits[split])),
            splits=tuple(splits),
            signature=_QUESTION_FIELDS,
            files=lambda split: files_of(splits[split]),
        )


def question_task(splits: Mapping[str, SplitFile]) -> dict[str, Any]:
    """Returns the arguments of `seqio.TaskRegistry.add` for a question answering dataset."""
    return {
        "source": QuestionSource(splits),
        "preprocessors": tokenized(),
        "output_features": t5_features(),
        "postprocess_fn": postprocess_answer,
        "metric_fns": [squad_metrics],
    }


def language_name(code: str) -> str:
    """Returns the English name of a language, for T5's prefixes.

    >>> language_name("pt-BR")
    'Portuguese'

    Raises:
      UserError: if the code is not a language code.
    """
    try:
        return babel.Locale.parse(re.split("[-_]", code)[0]).english_name
    except (ValueError, babel.UnknownLocaleError) as error:
        raise UserError(f"'{code}' is not a language code of ISO 639, such as en or de") from error


def translation_prefix(source: str, target: str) -> str:
    """Returns the prefix that T5 puts before a sentence to translate.

    >>> translation_prefix("en", "de")
    'translate English to German: '
    """
    return f"translate {language_name(source)} to {language_name(target)}: "


def _pair_records(
    splits: Mapping[str, SplitFile], source: str, target: str, split: str
) -> Iterator[Record]:
    before = translation_prefix(source, target)
    for sentence, translation in read_pairs(splits[split], source, target):
        yield {"inputs": before + sentence, "targets": translation}


def translation_task(splits: Mapping[str, SplitFile], source: str, target: str) -> dict[str, Any]:
    """Returns the arguments of `seqio.TaskRegistry.add` for one direction of a dataset.

    Raises:
      UserError: if a code is not a language code.
    """
    translation_prefix(source, target)
    return {
        "source": RecordSource(
            read=functools.partial(_pair_records, splits, source, target),
            count=functools.cache(lambda split: count_pairs(splits[split])),
            splits=tuple(splits),
            signature={"inputs": TEXT, "targets": TEXT},
            files=lambda split: files_of(splits[split]),
        ),
        "preprocessors": tokenized(),
        "output_features": t5_features(),
        "metric_fns": [Bleu()],
    }

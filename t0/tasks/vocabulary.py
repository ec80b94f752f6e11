"""Defines the vocabulary that all tasks share, with its features, and finds its file.

The vocabulary's path is the first of these values that is set: the `--vocab` flag, the gin binding
`t0.vocabulary.path = '/path/to/spiece.model'`, and the environment variable `T0_VOCAB`. If none of
them is set, the path is that of T5's public model on Google Cloud Storage. Registering 971 tasks
must not read the file. So the path is looked up and the file is read when the first text is
tokenized.

`t0.catalogue.sentence_pieces` describes the two editions of T5's model, and reads them without
TensorFlow.
"""

import functools
import os
from typing import Any

from t0.catalogue.sentence_pieces import EOS, EXTRA_IDS, REMEDY, checked_model, holds_sentinels
from t0.compat import gin, seqio, tf
from t0.errors import UserError, remote_mistake, short_reason
from t0.prompts.few_shot import TextMeasure, token_measure

DEFAULT_VOCABULARY = "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"

# Each of the two files of T5's public model -> the number of sentinels to add when it is loaded.
T5_EDITIONS = {
    DEFAULT_VOCABULARY: 0,
    "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model": EXTRA_IDS,
}

_chosen: list[str] = []
_times_set = 0


def set_vocabulary(path: str | None) -> None:
    """Sets the vocabulary of this process and its children (the `--vocab` flag).

    Args:
      path: a SentencePiece model, local or `gs://`. If it is None, the path is taken from gin,
        `T0_VOCAB` or the default, in this order.

    Raises:
      UserError: if `path` is local and does not exist.
    """
    global _times_set
    _chosen.clear()
    # If a model was loaded before, it is loaded again, so that gin records the use of
    # `vocabulary_path` again.
    _times_set += 1
    if path:
        if "://" not in path and not os.path.isfile(path):  # noqa: PTH113
            raise UserError(
                f"vocabulary not found: {path}. Give the path of a SentencePiece model."
            )
        _chosen.append(path)
        os.environ["T0_VOCAB"] = path


@gin.configurable("vocabulary", module="t0")
def vocabulary_path(path: str | None = None) -> str:
    """Returns the path of the SentencePiece model. The module's header says how it is chosen."""
    if _chosen:
        return _chosen[0]
    return path or os.environ.get("T0_VOCAB") or DEFAULT_VOCABULARY


class SharedVocabulary(seqio.SentencePieceVocabulary):
    """The SentencePiece model at `vocabulary_path()`, with T5's 100 sentinels after its pieces.

    It is equal to every other `SharedVocabulary`, and to a `seqio.SentencePieceVocabulary` with the
    same ids. This matters because a mixture compares the vocabularies of its tasks.
    """

    def __init__(self) -> None:
        super().__init__(sentencepiece_model_file="", extra_ids=EXTRA_IDS)
        self._chosen_by = None

    @property
    def sentencepiece_model_file(self) -> str:
        """The path of the loaded model, or of the model to load if no model is loaded yet."""
        if self._is_loaded:
            return self._sentencepiece_model_file
        return vocabulary_path()

    @property
    def _is_loaded(self) -> bool:
        # This runs for each text that Python tokenizes, so it must be fast. Asking gin for the path
        # would take 7 us.
        return self._model is not None and self._chosen_by == _choice()

    def _model_context(self):  # noqa: ANN202 (a private type of SeqIO)
        if not self._is_loaded:
            path = vocabulary_path()
            self._model = _same_as_stock(path)._model_context()
            self._sentencepiece_model_file = path
            self._chosen_by = _choice()
        return self._model

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedVocabulary):
            return True
        if not isinstance(other, seqio.SentencePieceVocabulary):
            return False
        path = self.sentencepiece_model_file
        if path in T5_EDITIONS:
            # Both files contain the same model, so neither has to be read.
            return any(
                other == seqio.SentencePieceVocabulary(edition, added)
                for edition, added in T5_EDITIONS.items()
            )
        return other.sentencepiece_model_file == path and other == _same_as_stock(path)

    def __hash__(self) -> int:
        return hash(SharedVocabulary)


def _choice() -> tuple[int, str | None]:
    """Returns a value that changes when `set_vocabulary` or T0_VOCAB selects another vocabulary."""
    return _times_set, os.environ.get("T0_VOCAB")


def _same_as_stock(path: str) -> seqio.SentencePieceVocabulary:
    """Returns a vocabulary of SeqIO's own class for the model at `path`, with the same ids."""
    model = checked_model(path, _read(path))
    added = 0 if holds_sentinels(model) else EXTRA_IDS
    return seqio.SentencePieceVocabulary(path, added)


def check_vocabularies(task: seqio.Task | seqio.Mixture) -> None:
    """Checks that the vocabularies of a task have T5's ids for padding and end of text.

    Training always pads with 0 and ends texts with 1, so other ids would be wrong. The option
    `--vocab` is checked in the same way. A file that is not on this machine is not checked here;
    the code that reads it reports an error.

    Raises:
      UserError: if a vocabulary has other ids for padding and end of text.
    """
    vocabularies = {id(f.vocabulary): f.vocabulary for f in task.output_features.values()}
    for vocabulary in vocabularies.values():
        if isinstance(vocabulary, SharedVocabulary):
            continue  # checked when its file is read
        if isinstance(vocabulary, seqio.SentencePieceVocabulary):
            path = vocabulary.sentencepiece_model_file
            if os.path.isfile(path):  # noqa: PTH113
                _check_own(task.name, path)
        elif vocabulary.eos_id not in (None, EOS) or vocabulary.pad_id != 0:
            raise UserError(
                f"task {task.name}: its vocabulary {type(vocabulary).__name__} has padding and end "
                f"of text as ids {vocabulary.pad_id} and {vocabulary.eos_id}; T5 needs 0 and {EOS}"
            )


@functools.lru_cache(maxsize=64)
def _check_own(name: str, path: str) -> None:
    try:
        checked_model(path, _read(path))
    except UserError as error:
        raise UserError(f"task {name}: {error}") from error


def _read(path: str) -> bytes:
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
    except (tf.errors.OpError, OSError) as error:
        reason = remote_mistake(error) or short_reason(error)
        raise UserError(f"the vocabulary {path} cannot be read ({reason}). {REMEDY}") from error
    if not content:
        raise UserError(f"the vocabulary {path} is empty. {REMEDY}")
    return content


_SHARED = SharedVocabulary()


def default_vocabulary() -> SharedVocabulary:
    """Returns the single vocabulary object that all prompted tasks share."""
    return _SHARED


def vocabulary_measure(length: int | None) -> TextMeasure:
    """Measures texts in the tasks' vocabulary.

    Args:
      length: see `token_measure`.
    """
    vocabulary = default_vocabulary()
    return token_measure(lambda text: len(vocabulary.encode(text)), length)


def t5_features(*, inputs_eos: bool = True) -> dict[str, seqio.Feature]:
    """Returns the features inputs and targets in the shared vocabulary.

    Args:
      inputs_eos: whether inputs end in EOS, as in T5's tasks. Targets always do.
    """
    return {
        name: seqio.Feature(default_vocabulary(), add_eos=add_eos, dtype=tf.int32)
        for name, add_eos in (("inputs", inputs_eos), ("targets", True))
    }


def tokenized() -> list[Any]:
    """Returns preprocessors that tokenize, append EOS and then mark the caching point."""
    return [
        seqio.preprocessors.tokenize,
        seqio.preprocessors.append_eos,
        seqio.CacheDatasetPlaceholder(required=False),
    ]

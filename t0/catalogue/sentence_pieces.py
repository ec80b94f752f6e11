"""Counts the tokens of texts, and finds where a token limit truncates a text, without TensorFlow.

    tokens = Tokens("spiece.model")
    tokens.ids("A film.")             # [71, 814, 5], without EOS
    tokens.text([71, 814, 5, 1])      # "A film."
    tokens.character_index("A film.", 2)    # 6, the index at which the third token begins

T5's SentencePiece model has two editions. The first edition has 32,000 pieces, and 100 sentinels
(`<extra_id_0>` ... `<extra_id_99>`) are added when the model is loaded. The second, `.100extra`,
contains the sentinels. Both editions have the same 32,100 ids, in the same order. This module
recognizes the edition by the pieces in the file.
"""

import functools
import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from t0.catalogue.text_growth import check_model
from t0.errors import UserError, reading
from t0.files import paths

EXTRA_IDS = 100
EOS, UNKNOWN = 1, 2
VOCABULARY_VARIABLE = "T0_VOCAB"
REMEDY = "Set a SentencePiece model file: --vocab=FILE or T0_VOCAB=FILE."

_SHOWN = 5
_PIECE = sentencepiece_model_pb2.ModelProto.SentencePiece
_FIRST_KINDS = [_PIECE.CONTROL, _PIECE.CONTROL, _PIECE.UNKNOWN]


def checked_model(path: str, content: bytes) -> sentencepiece_model_pb2.ModelProto:
    """Parses the content of a SentencePiece model file, and checks that the model fits T5.

    Args:
      path: the path of the file, for messages.
      content: the content of the file.

    Raises:
      UserError: the content is not a SentencePiece model, the model does not fit T5, or its rules
        can make a text much longer.
    """
    check_model(path, content)
    model = _parse_model(content)
    kinds = [piece.type for piece in model.pieces[:3]]
    if not kinds:
        raise UserError(f"{path} is not a SentencePiece model. {REMEDY}")
    if kinds != _FIRST_KINDS or model.pieces[1].piece != model.trainer_spec.eos_piece:
        first = ", ".join(piece.piece for piece in model.pieces[:3])
        raise UserError(
            f"{path}: T5 needs padding, end of text and unknown as ids 0, 1, 2; this model has "
            f"{first}. Train it with --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1."
        )
    return model


def _parse_model(content: bytes) -> sentencepiece_model_pb2.ModelProto:
    """Parses a SentencePiece model. The result has no pieces if the content is not a model."""
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        model.Clear()
    return model


def holds_sentinels(model: sentencepiece_model_pb2.ModelProto) -> bool:
    """Returns whether the model is the `.100extra` edition, which contains the sentinels."""
    # In this edition, the sentinels are the last pieces, in descending order.
    return "extra_id_0>" in model.pieces[-1].piece


def model_digest(content: bytes) -> str:
    """Returns a checksum of everything that determines a vocabulary's ids.

    Both editions of T5's model have the same checksum. If the content is not a SentencePiece model,
    the result is the checksum of its bytes.
    """
    model = _parse_model(content)
    pieces = [piece for piece in model.pieces if "<extra_id_" not in piece.piece]
    if not pieces:
        return hashlib.sha256(content).hexdigest()
    spec, bare = model.trainer_spec, sentencepiece_model_pb2.ModelProto(pieces=pieces)
    bare.normalizer_spec.CopyFrom(model.normalizer_spec)
    form = (spec.model_type, spec.byte_fallback, spec.treat_whitespace_as_suffix)
    return hashlib.sha256(bare.SerializeToString() + repr(form).encode()).hexdigest()


class UnknownCharacters(dict[str, bool]):
    """Character -> whether a vocabulary maps it to its unknown token. Each one is looked up once.

    Spaces, accents and invisible characters, such as the joiners of emojis, are never unknown here.

    Args:
      is_unknown: a function that looks up a character.
    """

    def __init__(self, is_unknown: Callable[[str], bool]) -> None:
        super().__init__()
        self._is_unknown = is_unknown

    def __missing__(self, character: str) -> bool:
        shown = unicodedata.category(character)[0] not in "CMZ"
        self[character] = unknown = shown and self._is_unknown(character)
        return unknown

    def count(self, text: str, counts: Counter[str]) -> None:
        """Adds 1 for each unknown character of a text, and 1 for "", which counts such texts."""
        if unknown := {character for character in set(text) if self[character]}:
            counts.update(["", *unknown])


def describe_unknown(counts: Mapping[str, int]) -> str:
    """Describes the counts of `UnknownCharacters.count`, with the most frequent characters."""
    common = sorted((c for c in counts if c), key=lambda c: (-counts[c], c))
    listed = ", ".join(f"'{c}' ({counts[c]:,})" for c in common[:_SHOWN])
    more = ", ..." * (len(common) > _SHOWN)
    verb = "has" if counts[""] == 1 else "have"
    return f"{counts['']:,} {verb} characters that are not in the vocabulary: {listed}{more}"


class Tokens:
    """A SentencePiece model with T5's sentinels, which tokenizes texts as SeqIO tasks do.

    Args:
      path: the path of the model file.

    Raises:
      UserError: the file cannot be read, or the model does not fit T5.
    """

    def __init__(self, path: str) -> None:
        if not paths.exists(path):
            raise UserError(f"vocabulary not found: {path}. {REMEDY}")
        with reading(path):
            content = paths.read_bytes(path)
        model = checked_model(path, content)
        if not holds_sentinels(model):
            for index in reversed(range(EXTRA_IDS)):
                model.pieces.add(
                    piece=f"\u2581<extra_id_{index}>", score=0.0, type=_PIECE.USER_DEFINED
                )
        self.path = path
        self._processor = sentencepiece.SentencePieceProcessor(
            model_proto=model.SerializeToString()
        )
        self.characters = UnknownCharacters(lambda character: UNKNOWN in self.ids(character))

    @property
    def model(self) -> bytes:
        """The model, including sentinels, for `SentencePieceProcessor(model_proto=...)`."""
        return self._processor.serialized_model_proto()

    def ids(self, text: str) -> list[int]:
        """Returns the token ids of a text, without EOS."""
        return self._processor.encode(text)

    def unknown(self, text: str) -> list[str]:
        """Returns the parts of a text that the vocabulary maps to its unknown token."""
        return [text[begin:end] for begin, end in self.unknown_ranges(text)]

    def unknown_ranges(self, text: str) -> list[tuple[int, int]]:
        """Returns the first index of each such part, and the index after it."""
        if UNKNOWN not in self.ids(text):
            return []
        pieces = self._processor.encode(text, out_type="immutable_proto").pieces
        return [(piece.begin, piece.end) for piece in pieces if piece.id == UNKNOWN]

    def text(self, ids: Sequence[int]) -> str:
        """Decodes token ids up to EOS. An id without a piece is decoded as the unknown token."""
        processor = self._processor
        count, unknown = processor.get_piece_size(), processor.unk_id()
        valid = [i if i < count else unknown for i in ids]
        if EOS in valid:
            valid = valid[: valid.index(EOS) + 1]
        return processor.decode(valid)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the piece of the vocabulary for each token id."""
        return self._processor.id_to_piece(list(ids))

    def character_index(self, text: str, length: int) -> int:
        """Returns the index of the first character that does not fit into `length` tokens.

        If the whole text fits, the result is the length of the text in characters.
        """
        pieces = self._processor.encode(text, out_type="immutable_proto").pieces
        return pieces[length].begin if length < len(pieces) else len(text)


def load_tokens(path: str | None) -> Tokens | None:
    """Loads the vocabulary at `path`. If `path` is None, the path in T0_VOCAB is used.

    T5's public vocabulary is not used as a default, because it would have to be downloaded.

    Returns:
      the vocabulary; None if `path` is None and T0_VOCAB is not set.

    Raises:
      UserError: the file cannot be read, or the model does not fit T5.
    """
    vocabulary = path or os.environ.get(VOCABULARY_VARIABLE)
    return _load_tokens(vocabulary) if vocabulary else None


def vocabulary_notes(tokens: Tokens, texts: Sequence[str]) -> list[str]:
    """Returns notes about targets or choices that the vocabulary cannot express.

    There are two kinds of notes, for example:

    not in the vocabulary: '😀', '😡'; the model reads and writes unknown tokens instead
    '😀' and '😡' have the same tokens: no model can tell them apart
    """
    texts = list(dict.fromkeys(texts))
    notes = []
    unknown = list(dict.fromkeys(piece for text in texts for piece in tokens.unknown(text)))
    if unknown:
        more = ", ..." * (len(unknown) > _SHOWN)
        listed = ", ".join(f"'{piece.strip()}'" for piece in unknown[:_SHOWN]) + more
        notes.append(
            f"not in the vocabulary: {listed}; the model reads and writes unknown tokens instead"
        )
    by_ids: dict[tuple[int, ...], list[str]] = {}
    for text in texts:
        by_ids.setdefault(tuple(tokens.ids(text)), []).append(text)
    for equal in by_ids.values():
        if len(equal) > 1:
            listed = " and ".join(f"'{text:.60}'" for text in equal[:_SHOWN])
            notes.append(f"{listed} have the same tokens: no model can tell them apart")
    return notes


@functools.lru_cache(maxsize=1)
def _load_tokens(path: str) -> Tokens:
    return Tokens(path)

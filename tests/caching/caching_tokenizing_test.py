"""The ids of texts that are put together of known words are SentencePiece's."""

import random

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t0.caching import tokenizing
from t0.caching.tokenizing import Tokenizer
from t0.catalogue.sentence_pieces import Tokens
from t0.files import protobuf_wire
from t0.testing import train_vocabulary

SPACES = [" "] * 20 + ["\n", "\t", "  ", "\r\n", "\f", " \n ", "\v", " \u200b", "\u3000", "\u00a0"]
ODD = "_N.-=*é½™ﬁﷺ한글ßﬃ①“”’\u0301"


@pytest.fixture(scope="module")
def t5_model(shared_data):
    """T5's vocabulary, in which some ways to cut a word have equal scores."""
    return Tokens(str(shared_data / "vocab" / "t5.spiece.model")).model


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "tiny.model"
    lines = ["rain and snow of the year", "the snow in Lima", "a rainy day, the warmest"] * 30
    return Tokens(str(train_vocabulary(path, lines))).model


def ids_of(tokenizer, texts):
    found = []
    for packed, count in tokenizer.encode([text.encode() for text in texts]):
        ids, at = [], 0
        while at < len(packed):
            value, at = protobuf_wire.read_varint(packed, at)
            ids.append(value)
        assert len(ids) == count
        found.append(ids)
    return found


def made_up(rng, pieces):
    """Returns texts of 1 to 400 words, most of which come again."""

    def word():
        kind = rng.random()
        if kind < 0.6:
            mark = rng.choice([*".,?!:;", "", "", "...", "?!"])
            return "".join(rng.choices(pieces, k=rng.randint(1, 3))) + mark
        if kind < 0.8:
            return rng.choice(ODD) * rng.randint(1, 20)
        if kind < 0.9:
            return "".join(rng.choices(ODD, k=rng.randint(1, 6)))
        return rng.choice([f"<extra_id_{rng.randint(0, 110)}>", "</s>", "▁", "a▁b", "x" * 50])

    common, rare = ([word() for _ in range(200)] for _ in range(2))
    for _ in range(300):
        words = rng.choices(common, k=rng.choice([1, 5, 40, 400]))
        if rng.random() < 0.3:
            words.append(rng.choice(rare))
        yield "".join(word + rng.choice(SPACES) for word in words)


@pytest.mark.parametrize("model", ["small_model", "t5_model"])
def test_tokenizer_ids_equal_sentencepiece(request, model):
    model = request.getfixturevalue(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i).strip("▁") or "a" for i in range(processor.vocab_size())]
    tokenizer = Tokenizer(model, eos_id=1)
    rng = random.Random(7)
    for _ in range(4):
        texts = [*made_up(rng, pieces)]
        for text, ids in zip(texts, ids_of(tokenizer, texts), strict=True):
            assert ids == processor.encode(text), text


def test_tokenizer_ids_equal_tf_text(prompted, toy_folder, with_data):
    """SentencePiece's package, in batches, and the library in tf_text that SeqIO calls."""
    from t0.tasks import default_vocabulary

    vocabulary = default_vocabulary()
    texts = [
        *("", " ", "  two  spaces ", "line\nline\r\n", "\ttab", "\u00a0nbsp\u200b", "e\u0301"),
        *(
            "<extra_id_0>",
            "a<extra_id_99>b",
            "<extra_id_100>",
            "</s> <pad> <unk>",
            "▁rain",
            "𝄞日本",
        ),
        *(" ".join(prompted.WORDS), "x" * 5000, "\0nul\0", "ﬁ①ＡＢ", "rain" * 300),
    ]
    found = ids_of(Tokenizer(vocabulary.sp_model, vocabulary.eos_id), texts)
    for text, ids in zip(texts, found, strict=True):
        assert ids == vocabulary.encode_tf(text).numpy().tolist(), repr(text)


def test_tokenizer_ambiguous_word_is_never_cached(t5_model):
    """Which of them wins depends on the rounding of all scores before it."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=t5_model)
    alone, after = (processor.encode(text)[-2:] for text in ("_" * 8, "a b c d " * 600 + "_" * 8))
    assert alone != after
    tokenizer = Tokenizer(t5_model, eos_id=1)
    texts = ["_" * 8, "a b c d " * 600 + "_" * 8, "_" * 8]
    assert [ids[-2:] for ids in ids_of(tokenizer, texts)] == [alone, after, alone]


def with_two_ways(model, lead):
    """Returns a model that cuts the word αβγ as ▁αβ γ, by a lead in nats over ▁α βγ.

    Where the sums of both are equal, SentencePiece takes the second.
    """
    model = sentencepiece_model_pb2.ModelProto.FromString(model)
    for piece, score in (("▁αβ", -5.0), ("γ", -5.0), ("▁α", -5.0), ("βγ", -5.0 - lead)):
        model.pieces.add(piece=piece, score=score)
    return model.SerializeToString()


def test_tokenizer_rounding_of_scores_in_long_texts(small_model):
    """As SentencePiece does: between ways that differ by less than a sum's last bit."""
    model = with_two_ways(small_model, 1e-4)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    texts = ["rain " * number + "αβγ" for number in range(0, 3000, 50)]
    wanted = processor.encode(texts)
    assert len({tuple(ids[-2:]) for ids in wanted}) == 2
    tokenizer = Tokenizer(model, eos_id=1)
    assert ids_of(tokenizer, texts) == wanted
    assert tokenizer._join(texts[0].encode()) and not tokenizer._join(texts[-1].encode())


def test_tokenizer_word_lookup_only_with_small_scores(small_model):
    """Neither in a text of many ids, nor where a word of few ids has a large score."""
    model = with_two_ways(small_model, 0.012)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = Tokenizer(model, eos_id=1)
    unknown = "☃" * 13  # of three bytes each, joined to one id
    assert ids_of(tokenizer, [unknown, "αβγ"]) == processor.encode([unknown, "αβγ"])
    assert tokenizer._in_few_ids[unknown.encode()] is None
    assert tokenizer._in_few_ids["αβγ".encode()] is not None
    for word, most in ((unknown, 300), ("and", 20_000)):  # few ids, and many
        texts = [f"{word} " * number + "αβγ" for number in range(0, most, most // 40)]
        assert ids_of(tokenizer, texts) == processor.encode(texts)
        assert tokenizer._join(texts[0].encode()) and not tokenizer._join(texts[-1].encode())


def test_tokenizer_punctuation_is_a_separate_piece(small_model, t5_model):
    """Only then are a word's pieces known without a search."""
    marks = tokenizing._marks(sentencepiece_model_pb2.ModelProto.FromString(t5_model))
    assert {b"m.", b"m,", b"a?"} <= marks.keys()
    assert b"1." not in marks  # a piece is "1."
    model = sentencepiece_model_pb2.ModelProto.FromString(small_model)
    assert not tokenizing._marks(model).keys() & {b"n."}  # no piece is "."
    comma = next(i for i, p in enumerate(model.pieces) if p.piece == ",")
    assert tokenizing._marks(model)[b"n,"] == comma
    model.pieces.add(piece="n,", score=-1.0)
    assert b"n," not in tokenizing._marks(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    texts = ["rain, snow.", "rain,"]
    assert ids_of(Tokenizer(model.SerializeToString(), 1), texts) == processor.encode(texts)


def counting(monkeypatch, owner, name):
    """Returns the list of the last argument of each call of a method, which works as before."""
    calls, method = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args: calls.append(args[-1]) or method(*args))
    return calls


def test_tokenizer_known_words_are_not_searched_again(small_model, monkeypatch):
    tokenizer = Tokenizer(small_model, eos_id=1)
    before = ids_of(tokenizer, ["rain and snow", "snow"])
    searched = counting(monkeypatch, tokenizing._KnownWords, "_search")
    assert ids_of(tokenizer, ["rain and snow", "snow"]) == before
    assert not searched
    ids_of(tokenizer, ["rain in Lima", "in"])
    assert searched == [b"in", b"Lima"]


def test_tokenizer_scores_only_for_long_texts_and_close_words(t5_model, monkeypatch):
    added = counting(monkeypatch, Tokenizer, "_join_by_score")
    tokenizer = Tokenizer(t5_model, eos_id=1)
    processor = sentencepiece.SentencePieceProcessor(model_proto=t5_model)
    # The two best ways to cut "prawns" differ by 0.004 nats.
    texts = ["a b c", "prawns", "a `` b", "a b c d " * 200, "a " * 120_000, "_" * 8]
    assert ids_of(tokenizer, texts) == processor.encode(texts)
    assert [len(words) for words in added] == [1, 800, 1]


def test_tokenizer_close_word_is_known_in_short_texts(t5_model):
    """`prawns` is, in a short text, and is not, in one whose score is a hundred times as large."""
    tokenizer = Tokenizer(t5_model, eos_id=1)
    assert tokenizer._join(b"prawns")
    assert tokenizer._join(b"a b c " * 3000)
    assert not tokenizer._join(b"a b c " * 3000 + b"prawns")
    word = tokenizer._words[b"prawns"]
    processor = sentencepiece.SentencePieceProcessor(model_proto=t5_model)
    best, second = processor.nbest_encode("prawns", nbest_size=2, out_type="immutable_proto").nbests
    assert 0 < word.lead < best.score - second.score < 0.01
    assert word.score == pytest.approx(-best.score)


def test_tokenizer_texts_of_new_words_are_not_learned(small_model, monkeypatch):
    monkeypatch.setattr(tokenizing, "_SEARCHES_AT_FIRST", 20)
    monkeypatch.setattr(tokenizing, "_WORDS_A_SEARCH", 10)
    searched = counting(monkeypatch, tokenizing._KnownWords, "_search")
    tokenizer = Tokenizer(small_model, eos_id=1)
    processor = sentencepiece.SentencePieceProcessor(model_proto=small_model)
    texts = [" ".join(f"{10 * row + i}x," for i in range(10)) for row in range(200)]
    assert ids_of(tokenizer, texts) == processor.encode(texts)
    assert len(searched) == 20 + 200
    # A word that comes again and again is learned nevertheless.
    again = ["snow"] * 30
    assert ids_of(tokenizer, again) == processor.encode(again)
    assert searched[-1] == b"snow" and b"snow" in tokenizer._in_few_ids


def test_tokenizer_word_cache_has_a_size_limit(small_model, monkeypatch):
    monkeypatch.setattr(tokenizing, "MOST_WORDS", 10)
    tokenizer = Tokenizer(small_model, eos_id=1)
    texts = [f"rain {number} " * 3 for number in range(50)]
    processor = sentencepiece.SentencePieceProcessor(model_proto=small_model)
    assert ids_of(tokenizer, texts) == processor.encode(texts)
    assert max(len(tokenizer._words), len(tokenizer._in_few_ids)) <= 10
    assert tokenizer._in_few_ids.keys() <= tokenizer._words.keys()


def spaces_kept(model):
    model.normalizer_spec.remove_extra_whitespaces = False


def other_spaces(model):
    model.normalizer_spec.name = "nfkc"


def no_space_before(model):
    model.normalizer_spec.add_dummy_prefix = False


def pieces_of_two_words(model):
    model.pieces[-1].piece = "▁of▁the"


def no_piece_for_a_space(model):
    next(piece for piece in model.pieces if piece.piece == "▁").piece = "☃"


def a_score_above_0(model):
    model.pieces[-1].score = 1.0


def pairs_are_merged(model):
    model.trainer_spec.model_type = model.trainer_spec.BPE


@pytest.mark.parametrize(
    "change",
    [
        spaces_kept,
        other_spaces,
        no_space_before,
        pieces_of_two_words,
        no_piece_for_a_space,
        a_score_above_0,
        pairs_are_merged,
    ],
)
def test_tokenizer_other_model_kinds_encode_whole_texts(small_model, change):
    model = sentencepiece_model_pb2.ModelProto.FromString(small_model)
    change(model)
    content = model.SerializeToString()
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    tokenizer = Tokenizer(content, eos_id=1)
    texts = ["  rain \t of the  snow ", "of the rain", ""]
    assert ids_of(tokenizer, texts) == processor.encode(texts)
    assert not tokenizer._by_words and not tokenizer._words

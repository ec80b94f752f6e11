"""The shared vocabulary: which file, when it is read, which ids, and what it is equal to."""

import copy
import os
import pickle
import shutil
import types
from pathlib import Path

import gin
import pytest
import sentencepiece
import seqio
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from t0 import testing
from t0.errors import UserError
from t0.tasks.vocabulary import (
    DEFAULT_VOCABULARY,
    SharedVocabulary,
    check_vocabularies,
    default_vocabulary,
    set_vocabulary,
    vocabulary_path,
)

T5_MODEL = Path(__file__).parents[3] / "shared" / "vocab" / "t5.spiece.model"
TEXTS = [
    "",
    " ",
    "the sun is glad",
    "a line\nand another\n\n",
    "a\ttab\t\tand  double   spaces",
    "trailing space ",
    " leading space",
    "say <extra_id_0> and <extra_id_99>",
    "<extra_id_1>",
    "glued<extra_id_2> to <extra_id_3>it",
    "<extra_id_100> <b>no</b> </s> <pad> <unk>",
    "Größe 北京 🙂 é ﬁ №",
    "it was\r\nbad\u00a0\u200b\u2028",
]


@pytest.fixture(autouse=True)
def no_choice_left():
    gin.clear_config()
    yield
    gin.clear_config()
    set_vocabulary(None)


def spm(path):
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def test_vocabulary_path_order_of_flag_gin_and_environment(models):
    assert vocabulary_path() == DEFAULT_VOCABULARY
    os.environ["T0_VOCAB"] = "/variable"
    assert vocabulary_path() == "/variable"
    gin.parse_config("t0.vocabulary.path = '/gin'")
    assert vocabulary_path() == "/gin"
    set_vocabulary(str(models["plain"]))
    assert vocabulary_path() == str(models["plain"])
    # Processes that are started now use the same.
    assert os.environ["T0_VOCAB"] == str(models["plain"])
    set_vocabulary(None)
    assert vocabulary_path() == "/gin"


@pytest.mark.parametrize("edition", ["plain", "sentinels"])
def test_vocabulary_ids_equal_sentencepiece(models, monkeypatch, edition):
    truth = spm(models["sentinels"])
    assert truth.encode("say <extra_id_0>")[-1] == truth.get_piece_size() - 1
    monkeypatch.setenv("T0_VOCAB", str(models[edition]))
    ours = SharedVocabulary()
    assert ours.vocab_size == truth.get_piece_size() == spm(models["plain"]).get_piece_size() + 100
    for text in TEXTS:
        ids = truth.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.encode_tf(tf.constant(text)).numpy().tolist() == ids, text
        assert ours.decode(ids) == truth.decode(ids), text
    assert (ours.pad_id, ours.eos_id, ours.unk_id) == (0, 1, 2)


@pytest.mark.skipif(not T5_MODEL.exists(), reason=f"T5's own model is not at {T5_MODEL}")
@pytest.mark.parametrize("edition", ["32,000 pieces", "with sentinels"])
def test_vocabulary_of_t5_has_32100_ids(edition, tmp_path, monkeypatch):
    model = sentencepiece_model_pb2.ModelProto.FromString(T5_MODEL.read_bytes())
    assert len(model.pieces) == 32_000
    for number in reversed(range(100)):
        model.pieces.add(piece=f"▁<extra_id_{number}>", score=0.0, type=4)
    full = tmp_path / "100extra.model"
    full.write_bytes(model.SerializeToString())
    monkeypatch.setenv("T0_VOCAB", str(T5_MODEL if edition == "32,000 pieces" else full))
    ours, truth = SharedVocabulary(), spm(full)
    assert ours.vocab_size == 32_100
    for text in TEXTS:
        assert ours.encode(text) == truth.encode(text), text
        assert ours.encode_tf(tf.constant(text)).numpy().tolist() == truth.encode(text), text
    assert ours.encode("<extra_id_0> <extra_id_99>") == [32_099, 32_000]


def test_vocabulary_reads_a_newly_chosen_file(models, monkeypatch):
    ours = default_vocabulary()
    monkeypatch.setenv("T0_VOCAB", str(models["plain"]))
    before = ours.vocab_size
    monkeypatch.setenv("T0_VOCAB", str(models["other"]))
    assert ours.vocab_size == before + 3
    assert ours.sentencepiece_model_file == str(models["other"])
    set_vocabulary(str(models["sentinels"]))
    assert ours.vocab_size == before


def test_vocabulary_equals_stock_one_with_the_same_ids(models, monkeypatch):
    plain, sentinels = str(models["plain"]), str(models["sentinels"])
    stock = seqio.SentencePieceVocabulary
    ours = SharedVocabulary()
    assert ours == SharedVocabulary() == default_vocabulary()
    monkeypatch.setenv("T0_VOCAB", plain)
    cases = [
        (stock(plain, 100), True),
        (stock(plain), False),
        (stock(plain, 100, reverse_extra_ids=False), False),
        (stock(sentinels), False),
        (stock(str(models["other"]), 100), False),
        (seqio.ByteVocabulary(), False),
    ]
    for other, same in cases:
        assert (ours == other) is (other == ours) is same, other
        assert (ours != other) is (other != ours) is not same, other
    monkeypatch.setenv("T0_VOCAB", sentinels)
    assert ours == stock(sentinels)
    assert ours != stock(sentinels, 100)


def test_vocabulary_equals_t5_default_without_reading_files(monkeypatch):
    monkeypatch.delenv("T0_VOCAB", raising=False)
    ours = SharedVocabulary()
    theirs = seqio.SentencePieceVocabulary(
        "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model", 100
    )
    assert ours == theirs == ours
    assert ours == seqio.SentencePieceVocabulary(DEFAULT_VOCABULARY)
    assert ours != seqio.SentencePieceVocabulary(DEFAULT_VOCABULARY, 100)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
@pytest.mark.parametrize("read_before", [False, True])
def test_vocabulary_copies_read_the_path_again(models, monkeypatch, copied, read_before):
    monkeypatch.setenv("T0_VOCAB", str(models["plain"]))
    ours = SharedVocabulary()
    if read_before:
        assert ours.encode("the sun")
    other = copied(ours)
    assert other == ours
    assert hash(other) == hash(ours)
    assert other.encode("the sun") == spm(models["plain"]).encode("the sun")
    assert len(pickle.dumps(ours)) < 1000


def test_vocabulary_in_mixture_of_own_and_stock_tasks(models, monkeypatch, clean_registries):
    monkeypatch.setenv("T0_VOCAB", str(models["plain"]))

    def rows(split, shuffle_files):
        return tf.data.Dataset.from_tensors({"targets": "the sun"})

    stock = seqio.SentencePieceVocabulary(str(models["plain"]), 100)
    for name, vocabulary in (("of_ours", default_vocabulary()), ("of_stock", stock)):
        seqio.TaskRegistry.add(
            name,
            source=seqio.FunctionDataSource(rows, splits=["train"]),
            preprocessors=[seqio.preprocessors.tokenize],
            output_features={"targets": seqio.Feature(vocabulary)},
        )
    mixture = seqio.MixtureRegistry.add("of_both", ["of_ours", "of_stock"], default_rate=1)
    dataset = mixture.get_dataset({"targets": 9}, "train", shuffle=False, num_epochs=1)
    ids = [example["targets"].tolist() for example in dataset.as_numpy_iterator()]
    assert ids[0] == stock.encode("the sun")


GARBAGE = {
    "empty": b"",
    "no message": b"not a model at all",
    "message without pieces": b"\xaa\x06\x03abc",
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_vocabulary_file_that_is_garbage_is_refused(kind, tmp_path, monkeypatch):
    path = tmp_path / "x.model"
    path.write_bytes(GARBAGE[kind])
    monkeypatch.setenv("T0_VOCAB", str(path))
    with pytest.raises(UserError) as raised:
        SharedVocabulary().encode("text")
    assert str(path) in str(raised.value)
    assert "--vocab" in str(raised.value)
    assert "empty" in str(raised.value) or "not a SentencePiece model" in str(raised.value)


def test_vocabulary_file_that_is_truncated_is_refused(models, tmp_path, monkeypatch):
    path = tmp_path / "half.model"
    path.write_bytes(models["plain"].read_bytes()[:-100])
    monkeypatch.setenv("T0_VOCAB", str(path))
    with pytest.raises(UserError, match="not a SentencePiece model"):
        SharedVocabulary().encode("text")


def test_vocabulary_file_that_is_missing_is_refused(tmp_path, monkeypatch):
    path = str(tmp_path / "absent.model")
    with pytest.raises(UserError, match="vocabulary not found: .*absent.model"):
        set_vocabulary(path)
    with pytest.raises(UserError, match="vocabulary not found"):
        set_vocabulary(str(tmp_path))
    monkeypatch.setenv("T0_VOCAB", path)
    with pytest.raises(UserError, match=r"absent.model cannot be read .*T0_VOCAB=FILE"):
        SharedVocabulary().encode("text")


def test_vocabulary_with_other_special_ids_is_refused(tmp_path, monkeypatch, models):
    # SentencePiece's own defaults: unk 0, bos 1, eos 2. Padding would be read as unknown words.
    model = sentencepiece_model_pb2.ModelProto.FromString(models["plain"].read_bytes())
    names = ["<unk>", "<s>", "</s>"]
    for piece, name, kind in zip(model.pieces, names, (2, 3, 3), strict=False):
        piece.piece, piece.type = name, kind
    path = tmp_path / "defaults.model"
    path.write_bytes(model.SerializeToString())
    monkeypatch.setenv("T0_VOCAB", str(path))
    with pytest.raises(UserError, match="<unk>, <s>, </s>.*--pad_id=0 --eos_id=1 --unk_id=2"):
        SharedVocabulary().encode("text")


def task_with(vocabulary):
    features = {"targets": seqio.Feature(vocabulary), "inputs": seqio.Feature(vocabulary)}
    return types.SimpleNamespace(name="mine", output_features=features)


def test_vocabulary_of_a_user_task_is_checked(tmp_path, models):
    path = testing.train_vocabulary(
        tmp_path / "defaults.model", ["sun and rain"] * 20, unk_id=0, bos_id=1, eos_id=2, pad_id=-1
    )
    own = seqio.SentencePieceVocabulary(str(path), extra_ids=100)
    with pytest.raises(
        UserError, match="task mine: .*defaults.model.*<unk>, <s>, </s>.*--pad_id=0"
    ):
        check_vocabularies(task_with(own))
    path.with_name("text.model").write_text("no model")
    with pytest.raises(UserError, match="task mine: .*text.model is not a SentencePiece model"):
        check_vocabularies(task_with(seqio.SentencePieceVocabulary(str(tmp_path / "text.model"))))
    with pytest.raises(UserError, match="padding and end of text as ids 0 and 7; T5 needs 0 and 1"):
        check_vocabularies(task_with(seqio.PassThroughVocabulary(100, eos_id=7)))


def test_vocabulary_check_accepts_t5_ids_and_missing_files(models):
    for vocabulary in (
        seqio.SentencePieceVocabulary(str(models["plain"]), extra_ids=100),
        seqio.SentencePieceVocabulary("gs://no-bucket/a.model"),
        seqio.ByteVocabulary(),
        seqio.PassThroughVocabulary(100),
        SharedVocabulary(),
    ):
        check_vocabularies(task_with(vocabulary))


def test_vocabulary_of_a_feature_is_read_lazily(tmp_path, monkeypatch):
    monkeypatch.setenv("T0_VOCAB", str(tmp_path / "absent.model"))
    feature = seqio.Feature(SharedVocabulary(), add_eos=True)
    assert copy.deepcopy(feature) == feature
    with pytest.raises(UserError):
        _ = feature.vocabulary.vocab_size


def test_vocabulary_file_at_another_path_is_read(models, tmp_path, monkeypatch):
    path = tmp_path / "copy.model"
    shutil.copy(models["other"], path)
    monkeypatch.setenv("T0_VOCAB", str(path))
    assert SharedVocabulary().encode("glad") == spm(models["other"]).encode("glad")

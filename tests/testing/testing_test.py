"""The functions for tests: what they write is read by the code that they are for."""

import pytest
import sentencepiece
import seqio
import tensorflow as tf

from t0 import testing
from t0.prompts import CompiledTemplate, read_template_file
from t0.sources import find_own_datasets

TEXT = ["rain in Oslo, snow in Lima.", "wind in Cairo, rain in Perth."] * 40


def test_trained_vocabulary_has_t5_first_pieces_and_sentinels_last(tmp_path):
    path = testing.train_vocabulary(tmp_path / "new" / "tiny.model", TEXT, size=40)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert [pieces.id_to_piece(n) for n in range(3)] == ["<pad>", "</s>", "<unk>"]
    assert pieces.decode(pieces.encode(TEXT[0])) == TEXT[0]
    again = testing.train_vocabulary(tmp_path / "again.model", TEXT, size=40)
    assert again.read_bytes() == path.read_bytes()
    testing.with_sentinels(path, tmp_path / "wide.model", count=7)
    wide = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "wide.model"))
    assert len(wide) == len(pieces) + 7
    assert wide.id_to_piece(len(wide) - 1) == "\u2581<extra_id_0>"


def test_written_dataset_is_found_and_its_prompts_are_read(tmp_path):
    prompts = {
        "which": ("{{text}} ||| {{answer_choices[label]}}", "rain ||| snow"),
        "x": ("a", None),
    }
    rows = [{"text": "wet", "label": 0}]
    folder = testing.write_dataset(tmp_path / "weather", prompts, {"train": rows})
    (found,) = find_own_datasets([tmp_path])
    assert found.name == "weather"
    templates = {t.name: t for t in read_template_file(folder / "templates.yaml").templates}
    assert templates.keys() == prompts.keys()
    example = CompiledTemplate(templates["which"], seed_name="which").example(rows[0])
    assert (example.inputs, example.targets) == ("wet", "rain")


def test_gin_and_registries_are_restored():
    from t0.compat import gin, gin_config, seqio

    with testing.gin_restored():
        gin.parse_config("some_macro = 3")
        gin.add_config_file_search_path("/nowhere")
    assert "some_macro" not in gin.config_str()
    assert "/nowhere" not in gin_config._LOCATION_PREFIXES
    with testing.registries_restored():
        source = seqio.TextLineDataSource({"train": "none.txt"})
        seqio.TaskRegistry.add("made_up", source=source, preprocessors=[], output_features={})
        seqio.MixtureRegistry.add("made_up_mixture", ["made_up"], default_rate=1)
    assert "made_up" not in seqio.TaskRegistry.names()
    assert "made_up_mixture" not in seqio.MixtureRegistry.names()


ROWS = [{"text": f"{word} in Oslo", "label": n % 2} for n, word in enumerate(["rain", "snow"] * 4)]


def ask(dataset):
    """Makes the features from the columns."""

    def make(row):
        targets = tf.where(row["label"] == 0, "rain", "snow")
        return {"inputs": tf.strings.join([row["text"], "?"]), "targets": targets}

    return dataset.map(make)


@pytest.fixture
def vocabulary(tmp_path):
    return testing.train_vocabulary(tmp_path / "tiny.model", TEXT)


def test_tiny_task_is_cached_like_seqio_and_unregistered(tmp_path, vocabulary):
    splits = {"train": ROWS, "validation": ROWS[:3]}
    with testing.tiny_task("moods", splits, [ask], vocabulary=vocabulary) as task:
        testing.assert_cache_like_seqio("moods", tmp_path / "cache")
        examples = list(task.get_dataset(None, "validation", shuffle=False).as_numpy_iterator())
        assert [x["inputs_pretokenized"].decode() for x in examples] == [
            "rain in Oslo?",
            "snow in Oslo?",
            "rain in Oslo?",
        ]
        assert all(x["targets"][-1] == 1 for x in examples)
    assert "moods" not in seqio.TaskRegistry.names()
    assert (tmp_path / "cache" / "moods" / "COMPLETED").exists()


def test_cache_unlike_seqio_is_an_error_with_the_example(tmp_path, vocabulary):
    """A preprocessor that draws at random, without a seed, makes other examples each time."""

    def draw(dataset):
        return dataset.map(lambda x: x | {"inputs": tf.as_string(tf.random.uniform([]))})

    with (
        testing.tiny_task("drawn", {"train": ROWS}, [ask, draw], vocabulary=vocabulary),
        pytest.raises(AssertionError, match="train, example 0, inputs.*: the cache has"),
    ):
        testing.assert_cache_like_seqio("drawn", tmp_path / "cache")

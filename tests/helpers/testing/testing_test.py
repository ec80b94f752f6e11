"""The functions for tests: what they write is read by the code that they are for."""

import sentencepiece

from t0.prompts import CompiledTemplate, read_template_file
from t0.sources import find_own_datasets
from tests.helpers import testing

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

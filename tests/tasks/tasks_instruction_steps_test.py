"""The steps of instructions: which examples stay for how many tokens, which output is drawn."""

import pytest
import seqio
import tensorflow as tf

from t0.tasks import default_vocabulary
from t0.tasks.instruction_steps import LONGEST_INPUTS, draw_output, encode_parts, join_what_fits

PARTS = {
    "name": "the name. ",
    "definition": "rain is sad.\n\n",
    "positives": [" sun is glad.\n\n", " rain rain is sad sad sad.\n\n", " no.\n\n"],
    "negatives": [" wind.\n\n", " day day day day.\n\n"],
    "instance": "is it good? ",
}
KINDS = ("positives", "negatives")


def tokens(text):
    return len(default_vocabulary().encode(text)) + 1


def wanted(most):
    """The rule of Tk-Instruct's collator, by the tokens of whole texts."""
    kept = {kind: [] for kind in KINDS}
    for kind in KINDS:
        for example in PARTS[kind]:
            before = PARTS["definition"] + " ".join(kept["positives"] + kept["negatives"])
            if tokens(before + example + PARTS["instance"]) > most:
                break
            kept[kind].append(example)
    examples = "".join(kept["positives"] + kept["negatives"])
    return PARTS["name"] + PARTS["definition"] + examples + PARTS["instance"]


def features():
    return dict.fromkeys(("inputs", "targets"), seqio.Feature(default_vocabulary(), add_eos=True))


def encoded(parts=PARTS, **more):
    dataset = tf.data.Dataset.from_tensors({**parts, "outputs": ["rain", "sun"], "id": "7", **more})
    return encode_parts(dataset, features())


def joined(most, parts=PARTS):
    """The text of the parts that stay, whose ids are looked at."""
    lengths = {"inputs": most} if most else None
    dataset = join_what_fits(encoded(parts), lengths, features(), positives=len(parts["positives"]))
    (record,) = dataset.as_numpy_iterator()
    assert record["id"] == b"7"
    assert "part_tokens" not in record
    assert "part_bytes" not in record
    text = record["inputs_pretokenized"].decode()
    assert record["inputs"].tolist() == default_vocabulary().encode(text)
    return text


def test_instruction_cache_record_has_each_part(vocabulary):
    (record,) = encoded().as_numpy_iterator()
    parts = [PARTS["name"], PARTS["definition"], *PARTS["positives"], *PARTS["negatives"]]
    parts.append(PARTS["instance"])
    encode = default_vocabulary().encode
    assert record["inputs_pretokenized"].decode() == "".join(parts)
    assert record["inputs"].tolist() == encode("".join(parts))
    assert record["part_tokens"].tolist() == [len(encode(part)) for part in parts]
    assert record["part_bytes"].tolist() == [len(part) for part in parts]
    assert record["outputs"].tolist() == encode("rain") + encode("sun")
    assert record["output_tokens"].tolist() == [len(encode("rain")), len(encode("sun"))]
    assert record["outputs_pretokenized"].tolist() == [b"rain", b"sun"]
    assert not {*PARTS} & {*record}


def test_instruction_parts_with_multibyte_characters(vocabulary):
    parts = {**PARTS, "definition": "Wörter überall – 雨。\n\n"}
    assert joined(None, parts) == wanted(10**6).replace(PARTS["definition"], parts["definition"])
    assert "雨" in joined(tokens(parts["definition"] + parts["instance"]), parts)


@pytest.mark.slow
def test_instruction_truncation_keeps_examples_that_fit(vocabulary):
    least, whole = tokens(PARTS["definition"] + PARTS["instance"]), tokens(wanted(10**6))
    lengths = range(least - 3, whole + 2, 2)
    found = {most: joined(most) for most in lengths}
    assert found == {most: wanted(most) for most in lengths}
    # Short ones stay behind a long one that did not fit, but none of its kind.
    assert len(set(found.values())) > 3


def test_instruction_truncation_drops_no_example_needlessly(vocabulary):
    assert joined(None) == wanted(LONGEST_INPUTS) == joined(10**6)


def test_instruction_empty_examples_add_nothing(vocabulary):
    parts = {**PARTS, "positives": [PARTS["positives"][0], "", ""], "negatives": ["", ""]}
    alone = {**PARTS, "positives": PARTS["positives"][:1], "negatives": tf.zeros([0], tf.string)}
    for most in (10, 20, 30, 1000):
        assert joined(most, parts) == joined(most, alone)


@pytest.mark.parametrize("several", [1, 3])
def test_instruction_output_is_sampled_by_seed(vocabulary, several):
    outputs = ["rain", "sun is", "no wind"][:several]
    dataset = encoded(outputs=outputs).repeat(40)

    def drawn(seed):
        with seqio.utils.map_seed_manager(seed):
            records = list(draw_output(dataset).as_numpy_iterator())
        assert len(records) == 40
        assert not any({"outputs", "output_tokens"} & {*record} for record in records)
        texts = [record["targets_pretokenized"].decode() for record in records]
        assert [record["targets"].tolist() for record in records] == [
            default_vocabulary().encode(text) for text in texts
        ]
        return texts

    assert set(drawn(1)) == set(outputs)
    assert drawn(1) == drawn(1)
    assert (drawn(1) == drawn(2)) is (several == 1)

"""Records in any order become examples, which are cut to the limits."""

import dataclasses
import json

import numpy as np
import pytest

from t0.caching import record_rows
from t0.errors import UserError
from t0.evaluation.ranked_examples import (
    EQUAL_TOKENS,
    UNKNOWN,
    AnswerChoice,
    MultipleChoiceExample,
    RankTaskFacts,
    count_task,
    truncate,
)
from t0.evaluation.records import cached_records, draw_sample, record_of, sort_records
from t0.evaluation.results import score_line
from t0.files import tfrecord


def features(example, choice, targets, correct, inputs=(5, 6, 7)):
    return {
        "idx": np.array([example, choice]),
        "inputs": np.array(inputs),
        "targets": np.array(targets),
        "is_correct": correct,
        "inputs_pretokenized": "in ü".encode(),
        "targets_pretokenized": f"choice {choice}".encode(),
    }


def record(*given, **more):
    return record_of(features(*given, **more))


def choice_of(one):
    return AnswerChoice(one.text, one.targets, one.is_correct, one.inputs)


FACTS = RankTaskFacts("made", "mine", "", [])


def examples(records, facts=FACTS):
    return list(count_task(facts, sort_records(records), None).examples())


def test_record_sorter_makes_examples_from_any_order():
    records = [
        record(7, 1, [4, 1], True),
        record(2, 0, [3, 1], True),
        record(7, 0, [3, 1], False),
        record(2, 2, [5, 1], False),
        record(2, 1, [4, 1], False),
    ]
    two, seven = examples(records)
    assert (two.idx, seven.idx) == (2, 7)
    assert [choice.text for choice in two.choices] == ["choice 0", "choice 1", "choice 2"]
    assert [list(choice.tokens) for choice in seven.choices] == [[3, 1], [4, 1]]
    assert (two.gold, seven.gold) == (0, 1)
    assert two.text == "in ü"
    assert list(two.choices[1].inputs) == [5, 6, 7]


def test_record_sorter_reads_tasks_again_separately_and_in_part():
    first = sort_records([record(0, 0, [3, 1], True)])
    second = sort_records(record(i, 0, [4, 1], True) for i in (5, 1, 0))
    for _ in range(2):
        assert [one.example for one in first()] == [0]
        assert [one.example for one in second()] == [0, 1, 5]
    assert all(a.example == b.example for a, b in zip(second(), second(), strict=True))
    assert [one.example for one in second(1, 5)] == [1]
    assert [one.example for one in second(2)] == [5]
    assert not list(sort_records([])())


def test_record_sorter_sorts_many_records_on_disk(tmp_path, monkeypatch):
    import tracemalloc

    import pyarrow

    before = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(before)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def many():
        for i in range(6000):
            yield record(i * 7919 % 6000, 0, [3, 1], True, inputs=range(1000))

    tracemalloc.start()
    pyarrow.set_memory_pool(pool)
    read = sort_records(many())
    seen = [one.example for one in read()]
    pyarrow.set_memory_pool(before)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == list(range(6000))
    assert peak + pool.max_memory() < 12_000_000  # 512 records are written together
    assert not list(tmp_path.iterdir())  # the file has no name


def write_cache(path, numbers, **more):
    from t0.files import tf_examples as entries

    with path.open("wb") as file:
        for example, choice in numbers:
            texts = {"targets_pretokenized": f"choice {choice}", **more}
            record = entries.ints_entry("idx", [example, choice])
            record += entries.ints_entry("inputs", [5, 6]) + entries.ints_entry("targets", [3, 1])
            record += entries.ints_entry("is_correct", [int(choice == 0)])
            for name, text in texts.items():
                record += entries.bytes_entry(name, [text.encode()])
            file.write(tfrecord.framed(entries.example(record)))
    return str(path)


def test_cached_records_are_read_from_all_files_in_any_order(tmp_path):
    ordered = [(example, choice) for example in range(5) for choice in range(2)]
    backwards = ordered[::-1]
    files = [write_cache(tmp_path / "0", backwards[:6]), write_cache(tmp_path / "1", backwards[6:])]
    assert [one[:2] for one in cached_records("made", files).records] == backwards
    assert [one[:2] for one in sort_records(cached_records("made", files).records)()] == ordered


def test_limit_draws_a_seeded_sample_that_only_depends_on_the_numbers():
    def numbers(count, size):
        return [number for number, _ in draw_sample(enumerate("x" * count), size)]

    few, more = numbers(1000, 20), numbers(1000, 100)
    assert few == numbers(1000, 20) == sorted(few)
    assert (len(few), len(more)) == (20, 100)
    assert set(few) < set(more)
    assert few[-1] > 500  # not the first rows
    # A task with a few rows less has almost the same sample.
    assert len(set(few) & set(numbers(990, 20))) >= 18
    assert numbers(5, 20) == [0, 1, 2, 3, 4]


def test_limit_of_every_number_is_drawn_equally_often():
    counts = np.zeros(10)
    for start in range(0, 4000, 10):
        for number, _ in draw_sample(((start + n, None) for n in range(10)), 3):
            counts[number - start] += 1
    assert counts.sum() == 400 * 3
    assert counts.min() > 80


def test_limit_keeps_all_choices_of_cached_examples_in_any_order(tmp_path):
    ordered = [(example, choice) for example in range(50) for choice in range(3)]
    shuffled = [ordered[n] for n in np.random.default_rng(0).permutation(len(ordered))]
    files = [write_cache(tmp_path / "0", ordered)], [write_cache(tmp_path / "1", shuffled)]
    samples = [
        [one[:2] for one in sort_records(cached_records("made", of_cache, examples=4).records)()]
        for of_cache in files
    ]
    examples = [number for number, _ in draw_sample(enumerate(range(50)), 4)]
    assert samples[0] == samples[1] == [(e, choice) for e in examples for choice in range(3)]


def test_limit_of_a_cache_draws_the_same_dataset_rows_as_without_a_cache(tmp_path):
    kept = [row for row in range(60) if row % 7]  # the prompt drops every seventh row
    numbers = [(example, choice) for example in range(len(kept)) for choice in range(2)]
    file = write_cache(tmp_path / "test.tfrecord-00000-of-00001", numbers)
    source = record_rows.RowSource("weather", None, "test", "which word", True)
    part = {record_rows.MASK: record_rows.pack_rows(kept, 0, 60), "start": 0, "stop": 60}
    rows = record_rows.content_of(source, [part])
    (tmp_path / "rows.test.json").write_text(json.dumps(rows))
    drawn = [row for row, _ in draw_sample(enumerate(range(60)), 20)]
    assert not set(drawn) <= set(kept)
    records = [*cached_records("made", [file], examples=20).records]
    assert [one[:2] for one in records] == [
        (row, choice) for row in drawn if row in kept for choice in range(2)
    ]
    # Without a limit, the examples also have the numbers of their rows.
    by_row = cached_records("made", [file])
    assert by_row.rows == 60
    assert [one[:2] for one in by_row.records] == [(kept[n], choice) for n, choice in numbers]
    # An evaluation that an earlier version began keeps the numbers of the kept examples.
    begun = cached_records("made", [file], by_row=False)
    assert begun.rows is None
    assert [one[:2] for one in begun.records] == numbers
    part = {record_rows.MASK: record_rows.pack_rows([0, 1], 0, 3), "start": 0, "stop": 3}
    rows = record_rows.content_of(source, [part])
    (tmp_path / "rows.test.json").write_text(json.dumps(rows))
    with pytest.raises(UserError, match="rows.test.json has 2 rows and no row of example 2"):
        list(cached_records("made", [file], examples=3).records)


def test_document_numbers_come_from_the_first_example():
    keys = {0: "a", 2: "b", 3: "a", 9: "b"}
    records = [record(i, 0, [3, 1], True)._replace(document=key) for i, key in keys.items()]
    assert [one.document for one in examples(records)] == [0, 2, 0, 2]
    own = [one._replace(document=str(i)) for i, one in enumerate(records)]
    assert [one.document for one in examples(own)] == [None] * 4  # none is shared


def test_documents_missing_in_records_come_from_the_rows(monkeypatch):
    asked = []
    keys = ["a", "b", "a"]

    def documents_in_rows(*rows):
        asked.append(rows)
        return keys

    monkeypatch.setattr("t0.evaluation.ranked_examples.documents_in_rows", documents_in_rows)
    rows = ("anli", None, "dev_r1")
    facts = RankTaskFacts("made", "anli", "", [], rows)
    read = sort_records(record(i, 0, [3, 1], True) for i in range(3))
    known = count_task(facts, read, None)
    assert known.document_count == 2
    assert [one.document for one in known.examples()] == [0, 1, 0]
    assert asked == [(*rows, 3)]
    keys = None
    assert count_task(facts, read, None).document_count == UNKNOWN
    assert count_task(FACTS, read, None).document_count is None


def test_ids_of_examples_are_in_the_lines_of_scores(monkeypatch):
    monkeypatch.setattr("t0.evaluation.ranked_examples.ids_in_rows", lambda *rows: ["T-1", "T-2"])
    facts = RankTaskFacts("made", "mine", "", [], ("mine", None, "validation"))
    lines = [
        score_line(example, np.zeros(1))
        for of_facts in (facts, FACTS)
        for example in examples([record(i, 0, [3, 1], True) for i in range(2)], of_facts)
    ]
    assert [line.get("id") for line in lines] == ["T-1", "T-2", None, None]


@pytest.mark.parametrize(
    ("correct", "reason", "gold"),
    [
        ([False, True], None, 1),
        ([False, False], "no correct choice", -1),
        ([True, True], "several correct choices", -1),
    ],
)
def test_excluded_example_without_exactly_one_correct_choice(correct, reason, gold):
    choices = tuple(choice_of(record(0, i, [3 + i, 1], c)) for i, c in enumerate(correct))
    assert MultipleChoiceExample(0, choices).excluded == reason
    assert MultipleChoiceExample(0, choices).gold == gold


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([[3, 2, 1], [3, 2, 1], [5, 1]], "the right choice has the same tokens as a wrong one"),
        ([[3, 2, 1], [5, 1], [5, 1]], None),  # two wrong ones are equal
    ],
)
def test_excluded_example_if_correct_choice_equals_a_wrong_one(tokens, reason):
    choices = tuple(choice_of(record(0, i, ids, i == 0)) for i, ids in enumerate(tokens))
    made = MultipleChoiceExample(0, choices)
    assert (made.excluded, made.gold) == (reason, -1 if reason else 0)
    # The same answer after another input is another choice.
    other = dataclasses.replace(choices[0], inputs=np.array([9], np.int32))
    assert MultipleChoiceExample(0, (other, *choices[1:])).excluded is None


def test_truncation_that_makes_choices_equal_excludes_the_example():
    long = [[3, 4, 5, 6, 1], [3, 4, 7, 1]]
    whole = MultipleChoiceExample(
        0, tuple(choice_of(record(0, i, ids, i == 0)) for i, ids in enumerate(long))
    )
    cut, _ = truncate(whole, {"inputs": 9, "targets": 3})
    assert (whole.excluded, cut.excluded) == (None, EQUAL_TOKENS)


def test_truncation_keeps_eos_and_counts_an_input_once():
    records = [
        record(0, 0, [3, 4, 5, 6, 1], True, inputs=range(10, 20)),
        record(0, 1, [3, 4, 1], False, inputs=range(10, 20)),
    ]
    whole = MultipleChoiceExample(0, tuple(map(choice_of, records)))
    long, cut = truncate(whole, {"inputs": 4, "targets": 3})
    assert [list(choice.tokens) for choice in long.choices] == [[3, 4, 1], [3, 4, 1]]
    assert [list(choice.inputs) for choice in long.choices] == [[10, 11, 12, 13]] * 2
    assert (cut.inputs, cut.targets) == (1, 1)
    same, cut = truncate(whole, {"inputs": 10, "targets": 5})
    assert [list(choice.tokens) for choice in same.choices] == [[3, 4, 5, 6, 1], [3, 4, 1]]
    assert (cut.inputs, cut.targets) == (0, 0)


def test_truncation_without_limits_changes_nothing():
    made = MultipleChoiceExample(0, (choice_of(record(0, 0, list(range(3, 600)), True)),))
    whole, cut = truncate(made, None)
    assert whole == made
    assert (cut.inputs, cut.targets) == (0, 0)

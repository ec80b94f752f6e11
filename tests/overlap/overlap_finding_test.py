"""Overlaps that were planted are found, nothing else is, and every way to search finds the same."""

import gzip
import hashlib
import itertools
import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t0.catalogue.listing import read_listing
from t0.errors import UserError
from t0.overlap import OverlapCriteria, OverlapSearch, find, finding, index, training_texts
from t0.overlap.evaluation_rows import RowBatch, evaluation_sets, texts_in
from t0.overlap.index import Index, scan, write_index
from t0.overlap.overlap_counts import longest_common
from t0.overlap.training_texts import FileJob, RowsJob, TrainingTexts, add_listed
from t0.overlap.words import split_words, word_list
from t0.testing import train_vocabulary, write_dataset
from tests.overlap import planted

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
if not SHARED.is_dir():
    SHARED = ROOT.parents[1] / "shared" / "data"
SETTINGS = OverlapCriteria(min_words=planted.MINIMUM)
BOOKS = OverlapSearch(("books_read",), ("quiz_.*",), settings=SETTINGS)
FILES = ("overlap.json", "overlap.txt", "rows.jsonl")


def found_rows(folder):
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    return {record["row"]: record for record in map(json.loads, lines)}


def files(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture
def found(with_planted, tmp_path):
    """What `find` returned, and the folder it wrote."""
    return find(BOOKS, str(tmp_path / "out")), tmp_path / "out"


def test_data_overlap_finds_planted_rows_only(found):
    facts, folder = found
    rows = found_rows(folder)
    kinds = dict(enumerate(planted.PLANTED))
    assert [kinds.get(row) for row in rows] == list(planted.PLANTED)
    for row, record in rows.items():
        assert record["overlaps"] == {"13": True, "8": True}, kinds[row]
        (premise,) = record["fields"]["premise"]
        size = len(word_list(list(planted.PLANTED.values())[row]))
        assert (premise["words"], premise["whole"]) == (size, True)
        assert premise["overlapping_words"] == {"13": size, "8": size}
        (place,) = record["found"]
        where = {"task": "books_read", "split": "train", "file": None, "record": row, "source": 0}
        assert place["where"] == where
    counts = facts["datasets"]["quiz"]
    assert (counts["rows"], counts["overlapping"]) == (8, {"13": 6, "8": 6})
    assert counts["found_in"] == {"books": 6}
    assert counts["fields"]["premise"]["whole"] == 6
    assert "url" not in counts["fields"]  # no prompt reads it
    assert facts["run"]["train_texts"] == 7
    assert facts["error"]["expected_false_matches"] < 1e-9


def test_data_overlap_counts_examples_of_each_prompt(found):
    facts, folder = found
    prompts = facts["datasets"]["quiz"]["prompts"]
    assert {name: one["texts"] for name, one in prompts.items()} == {
        "quiz_blind": 8,
        "quiz_odd": 7,  # the prompt drops row 1
        "quiz_plain": 8,
    }
    assert {name: one["overlapping"]["13"] for name, one in prompts.items()} == {
        "quiz_blind": 0,
        "quiz_odd": 5,
        "quiz_plain": 6,
    }
    row = found_rows(folder)[2]["prompts"]
    # As scores number the examples: by row, also if the prompt drops an earlier row.
    assert {name: one["idx"] for name, one in row.items()} == {"quiz_odd": 2, "quiz_plain": 2}
    # A field of four words counts in the text of a prompt, too.
    assert found_rows(folder)[4]["prompts"]["quiz_plain"]["overlapping_words"]["13"] == 4


def test_data_overlap_result_names_its_rows_file(found):
    facts, folder = found
    content = (folder / "rows.jsonl").read_bytes()
    written = json.loads((folder / "overlap.json").read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(facts))
    digest = hashlib.sha256(content).hexdigest()
    assert written["rows"] == {"file": "rows.jsonl", "lines": 6, "sha256": digest}
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def test_data_overlap_table_is_80_columns_wide(found):
    text = (found[1] / "overlap.txt").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"\nquiz +8  75.0%  \S+%  75.0%  \S+%\n", text)
    assert "he wrote the heron stood in the shallow water" in " ".join(text.split())
    assert "rows found in: books 6" in text


def test_data_overlap_ignores_words_of_the_prompt(with_planted, tmp_path):
    """Training texts of another prompt that has the same words say nothing of the rows."""
    text = "Who? True or false, in the opinion of those who know more about it than all of us do?"
    planted.write_cache(tmp_path / "cache" / "other", [(text, "true")])
    request = OverlapSearch((str(tmp_path / "cache"),), ("quiz_.*",), settings=SETTINGS)
    facts = find(request, str(tmp_path / "out"))
    assert facts["datasets"]["quiz"]["overlapping"] == {"13": 0, "8": 0}


def test_data_overlap_across_fields_that_a_prompt_joins(tmp_path, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "data"))
    row = {"start": "a b c d", "end": "e f g h", "label": 0}
    prompts = {
        "joined": ("{{start}} {{end}} ||| {{answer_choices[label]}}", "no ||| yes"),
        "apart": ("{{start}} X {{end}} ||| {{answer_choices[label]}}", "no ||| yes"),
    }
    write_dataset(tmp_path / "data" / "halves", prompts, {"validation": [row]})
    planted.write_cache(tmp_path / "cache" / "t", [("z a b c d e f g h z", "y")])
    facts = find(
        OverlapSearch(
            (str(tmp_path / "cache"),), ("halves_.*",), settings=OverlapCriteria((8,), 5)
        ),
        str(tmp_path / "out"),
    )
    prompts = facts["datasets"]["halves"]["prompts"]
    assert {name: one["overlapping"]["8"] for name, one in prompts.items()} == {
        "halves_apart": 0,
        "halves_joined": 1,
    }


def test_data_overlap_prompt_words_equal_to_a_field_of_another_row(tmp_path, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "data"))
    words = "is this a good film or rather a bad film"
    rows = [{"text": text, "label": 0} for text in ("nothing of the sort was ever said", words)]
    prompt = {"which": (f"{{{{text}}}} {words} ||| {{{{answer_choices[label]}}}}", "bad ||| good")}
    write_dataset(tmp_path / "data" / "films", prompt, {"validation": rows})
    planted.write_cache(tmp_path / "cache" / "t", [(f"So {words}?", "good")])
    request = OverlapSearch(
        (str(tmp_path / "cache"),), ("films_.*",), settings=OverlapCriteria((8,))
    )
    facts = find(request, str(tmp_path / "out"))
    assert [*found_rows(tmp_path / "out")] == [1]
    assert facts["datasets"]["films"]["prompts"]["films_which"]["overlapping"] == {"8": 1}


WORD = st.sampled_from("abc")
SHORT_TEXTS = st.lists(st.lists(WORD, max_size=9).map(" ".join), min_size=1, max_size=5)


@settings(max_examples=60)
@given(SHORT_TEXTS, SHORT_TEXTS, st.sampled_from([(3, 2), (4,), (2, 5)]), st.integers(1, 4))
def test_data_overlap_index_equals_a_plain_loop(tmp_path_factory, fields, training, ngrams, least):
    folder = tmp_path_factory.mktemp("index")
    count = len(fields)
    batch = RowBatch(
        rows=[*range(count)],
        texts=fields,
        owner=np.arange(count),
        origins=["text"] * count,
        is_field=np.ones(count, bool),
    )
    criteria = OverlapCriteria(ngrams, least)
    write_index(str(folder), criteria, [batch])
    opened = Index(str(folder), criteria)
    words = split_words(training)
    starts, places = opened.find_matches(words)
    lists = [text.split() for text in training]
    runs = {}
    for field in (text.split() for text in fields):
        lengths = {n for n in ngrams if n <= len(field)}
        whole = {len(field)} if len(field) >= least else set()
        for n in lengths | whole:
            for run in (tuple(field[i : i + n]) for i in range(len(field) - n + 1)):
                runs[run] = None
    wanted = sorted(
        (text, start, run)
        for text, some in enumerate(lists)
        for run in runs
        for start in range(len(some) - len(run) + 1)
        if tuple(some[start : start + len(run)]) == run
    )
    hashes = {
        run: split_words([" ".join(run)]).hash_sequences(np.array([0]), len(run))[0] for run in runs
    }
    by_hash = {int(value): run for run, value in hashes.items()}
    begins = words.ends[words.text_of[starts]]
    got = sorted(
        (text, start, by_hash[value])
        for text, start, value in zip(
            words.text_of[starts].tolist(),
            (starts - begins).tolist(),
            opened.hashes[places].tolist(),
            strict=True,
        )
    )
    assert list(dict.fromkeys(got)) == wanted


def test_data_overlap_index_written_in_pieces_is_the_same(with_planted, tmp_path, monkeypatch):
    (chosen,), _ = evaluation_sets(read_listing(), ["quiz_.*"], "validation")

    def written(name):
        (tmp_path / name).mkdir()
        write_index(str(tmp_path / name), SETTINGS, chosen.batches())
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    at_once = written("once")
    monkeypatch.setattr(index, "_PENDING", 1)
    monkeypatch.setattr("t0.overlap.evaluation_rows.ROWS_AT_ONCE", 1)
    assert written("pieces") == at_once


@pytest.mark.parametrize("way", ["processes", "pieces"])
def test_data_overlap_workers_write_the_same_files(found, tmp_path, monkeypatch, way):
    options = {}
    monkeypatch.setattr(training_texts, "ROWS_OF_A_JOB", 2)
    if way == "processes":
        options["workers"] = 2
    else:
        monkeypatch.setattr(training_texts, "_CHARACTERS_AT_ONCE", 1)
        monkeypatch.setattr("t0.overlap.index._PENDING_MATCHES", 1)
    find(BOOKS, str(tmp_path / way), **options)
    assert files(tmp_path / way) == files(found[1])
    assert sorted(path.name for path in (tmp_path / way).iterdir()) == sorted(FILES)


@pytest.mark.parametrize("workers", [0, 1])
def test_data_overlap_worker_error_is_one_line(with_planted, tmp_path, workers):
    damaged = planted.write_cache(tmp_path / "cache" / "books_read", [("a", "b")])
    shard = damaged / "train.tfrecord-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:-2])
    request = OverlapSearch((str(tmp_path / "cache"),), ("quiz_.*",), settings=SETTINGS)
    with pytest.raises(UserError, match="the file ends within record 0"):
        find(request, str(tmp_path / "out"), workers=workers)
    assert [*(tmp_path / "out").iterdir()] == []


def listed_training(listing, expression):
    training = TrainingTexts()
    add_listed(training, listing, expression, "train")
    return training


def test_data_overlap_cache_equals_rendered_task(found, tmp_path):
    texts, rests = planted.training_texts()
    pairs = [(f"{text} {rest}", "no") for text, rest in zip(texts, rests, strict=True)]
    cache = planted.write_cache(tmp_path / "cache" / "books_read", pairs)
    request = OverlapSearch((str(tmp_path / "cache"),), ("quiz_.*",), settings=SETTINGS)
    by_folder = find(request, str(tmp_path / "cached"))
    assert by_folder["datasets"]["quiz"]["overlapping"] == {"13": 6, "8": 6}
    where = found_rows(tmp_path / "cached")[2]["found"][0]["where"]
    assert where["file"] == str(cache / "train.tfrecord-00000-of-00001")
    assert where["record"] == 2
    # A task that is in the catalogue is read from its cache, where --cache_dirs has one.
    listed = listed_training(read_listing([str(tmp_path / "cache")]), "books_read")
    assert isinstance(listed.jobs[0], FileJob)
    assert isinstance(listed_training(read_listing(), "books_read").jobs[0], RowsJob)
    # Of a cache without the split the rows are rendered.
    (cache / "info.train.json").rename(cache / "info.test.json")
    again = listed_training(read_listing([str(tmp_path / "cache")]), "books_read")
    assert isinstance(again.jobs[0], RowsJob)


@pytest.mark.slow
def test_data_overlap_in_object_stores(with_planted, tmp_path):
    """Through TensorFlow's file system, of which one in memory stands for gs://."""
    from t0.files import paths
    from t0.reports.clean_examples import read_overlap

    cache = planted.write_cache(tmp_path / "books_read", [(planted.PLANTED["verbatim"], "no")])
    place = f"ram://{tmp_path.name}"
    paths.make_folder(f"{place}/cache/books_read")
    for path in cache.iterdir():
        paths.copy(str(path), f"{place}/cache/books_read/{path.name}")
    request = OverlapSearch((f"{place}/cache",), ("quiz_.*",), settings=SETTINGS)
    find(request, f"{place}/out")
    assert paths.list_names(f"{place}/out") == sorted(FILES)
    found = read_overlap(f"{place}/out").rows
    assert found == {"quiz_odd": {0}, "quiz_plain": {0}}


def test_data_overlap_cache_without_text_is_decoded(with_planted, tmp_path):
    import sentencepiece

    texts, _ = planted.training_texts()
    path = train_vocabulary(tmp_path / "v.model", texts, size=200)
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pairs = [(text, "") for text in texts]
    planted.write_cache(
        tmp_path / "cache" / "lm", pairs, ids=[model.encode(t) + [1] for t in texts]
    )
    request = OverlapSearch((str(tmp_path / "cache"),), ("quiz_.*",), settings=SETTINGS)
    facts = find(request, str(tmp_path / "out"), vocabulary=path.read_bytes())
    before = files(tmp_path / "out")
    # All but the one that a prompt put together.
    assert facts["datasets"]["quiz"]["overlapping"] == {"13": 5, "8": 5}
    with pytest.raises(UserError, match="have token ids and no text. Name the vocabulary"):
        find(request, str(tmp_path / "out"))
    other = train_vocabulary(tmp_path / "small.model", ["ab ba"] * 20, size=8)
    with pytest.raises(UserError, match="made with another one"):
        find(request, str(tmp_path / "out"), vocabulary=other.read_bytes())
    assert files(tmp_path / "out") == before


def test_data_overlap_memory_does_not_grow_with_training_data(with_planted, tmp_path, monkeypatch):
    monkeypatch.setattr(training_texts, "_CHARACTERS_AT_ONCE", 2**13)
    (chosen,), _ = evaluation_sets(read_listing(), ["quiz_.*"], "validation")
    write_index(str(tmp_path), SETTINGS, chosen.batches())
    opened = Index(str(tmp_path), SETTINGS)

    def peak(rows):
        data = tmp_path / str(rows)
        texts = [{"text": planted.PLANTED["case"], "rest": "", "label": 0}] * rows
        prompt = {"read": ("{{text}} ||| {{answer_choices[label]}}", "no ||| yes")}
        write_dataset(data / "many", prompt, {"train": texts})
        monkeypatch.setenv("T0_DATA_DIR", str(data))
        (job,) = listed_training(read_listing(), "many_read").jobs
        scan(job, opened, [0], None)  # Jinja's and numpy's own
        tracemalloc.start()
        found = scan(job, opened, [0], None)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found.table[:, 3].max() == rows
        return size

    assert peak(2000) < 1.5 * peak(200)


def test_data_overlap_of_own_train_and_validation_splits(tmp_path, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
    rows = [
        {"text": f"The review number {n} praises the film beyond measure.", "label": n % 2}
        for n in range(9)
    ]
    prompts = {"which": ("{{text}} ||| {{answer_choices[label]}}", "bad ||| good")}
    splits = {"train": rows[:6], "validation": rows[5:]}
    write_dataset(tmp_path / "films", prompts, splits)
    facts = find(OverlapSearch(("films_.*",), ("films_.*",)), str(tmp_path / "out"))
    assert facts["datasets"]["films"]["overlapping"] == {"13": 1, "8": 1}
    with pytest.raises(UserError, match="both have the split 'train' of films"):
        find(OverlapSearch(("films_.*",), ("films_.*",), eval_split="train"), str(tmp_path / "out"))


def mistakes(folder):
    """(request, part of the message) of what a user may get wrong."""
    unfinished = planted.write_cache(folder / "begun" / "books_read", [("a", "b")])
    (unfinished / "COMPLETED").unlink()
    planted.write_cache(folder / "tests" / "books_read", [("a", "b")], split="test")
    lacking = planted.write_cache(folder / "lacking" / "books_read", [("a", "b")])
    (lacking / "train.tfrecord-00000-of-00001").rename(lacking / "train.tfrecord-00001-of-00002")
    (folder / "empty").mkdir()
    begun, tests, empty = (str(folder / name) for name in ("begun", "tests", "empty"))
    yield OverlapSearch((begun,), ("quiz_.*",)), "is not a finished cache: it has no COMPLETED"
    yield (
        OverlapSearch((tests,), ("quiz_.*",)),
        "no cache in .* has records of a split 'train'.*it has test",
    )
    yield OverlapSearch((empty,), ("quiz_.*",)), "has no cache"
    yield (
        OverlapSearch((str(folder / "lacking"),), ("quiz_.*",)),
        "has 1 of 2 files of the split 'train'",
    )
    yield OverlapSearch((f"{empty}/none",), ("quiz_.*",)), "has no cache"
    yield (
        OverlapSearch(("bookz_read",), ("quiz_.*",)),
        "unknown task or mixture 'bookz_read'. Did you mean",
    )
    yield OverlapSearch(("books_read",), ("quizz",)), "unknown task or mixture 'quizz'"
    yield (
        OverlapSearch(("books_read",), ("quiz_.*",), "dev"),
        "no task of books_read has a split 'dev'; books_read has: train. .* --train_split",
    )
    yield (
        OverlapSearch(("books_read",), ("quiz_.*",), eval_split="dev"),
        "has a split 'dev'; quiz_blind has: validation. Choose one of them with --eval_split",
    )
    yield OverlapSearch(("books_read",), ("quiz_blind",)), "have no text of 5 words or more"
    yield (
        OverlapSearch(("books_read",), ("super_glue_rte_.*",)),
        "Or leave it out with --skip_absent_splits",
    )


@pytest.mark.parametrize("number", range(11))
def test_data_overlap_mistakes_are_refused_with_message(with_planted, tmp_path, number):
    request, message = next(itertools.islice(mistakes(tmp_path / "caches"), number, None))
    with pytest.raises(UserError, match=message):
        find(request, str(tmp_path / "out"))
    assert not (tmp_path / "out" / "overlap.json").exists()


def test_data_overlap_skip_absent_splits(with_planted, tmp_path):
    request = OverlapSearch(
        ("books_read", "super_glue_cb_.*"),
        ("quiz_plain", "super_glue_rte_.*"),
        settings=SETTINGS,
        skip_absent=True,
    )
    with pytest.raises(UserError, match="found no data for the tasks of super_glue_cb"):
        find(request, str(tmp_path / "out"))
    request = OverlapSearch(("books_read",), ("quiz_plain", "super_glue_rte_.*"), skip_absent=True)
    facts = find(request, str(tmp_path / "out"))
    assert [*facts["datasets"]] == ["quiz"]
    assert "super_glue/rte, split 'validation': left out" in facts["run"]["notes"][0]


def test_data_overlap_ctrl_c_leaves_no_result(found, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(finding.OverlapOutcome, "rows", interrupted)
    with pytest.raises(KeyboardInterrupt, match="nothing was written"):
        find(BOOKS, str(found[1]))
    assert not (found[1] / "overlap.json").exists()
    assert not [path for path in found[1].iterdir() if "incomplete" in path.name]


def test_data_overlap_texts_of_nested_columns():
    value = [{"text": ["a", 3], "none": None}, "b"]
    assert list(texts_in("c", value)) == [("c.text", "a"), ("c", "b")]


def test_data_overlap_longest_common_words():
    assert longest_common([], ["a"]) == (0, 0, 0)
    assert longest_common([*"aaba"], [*"baab"]) == (0, 1, 3)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
def test_data_overlap_known_cases_in_rte_and_boolq(tmp_path, monkeypatch):
    """RTE's train split has premises and hypotheses of its validation split; BoolQ has two."""
    monkeypatch.setenv("T0_DATA_DIR", str(SHARED))
    task = "super_glue_rte_should_assume"
    facts = find(OverlapSearch((task, "super_glue_boolq_GPT_3_Style"), (task,)), str(tmp_path))
    facts = facts["datasets"]["super_glue/rte"]
    trained = [word_list(f"{r['premise']} | {r['hypothesis']}") for r in _rte("train")]
    searched = "\n".join(f" {' '.join(words)} " for words in trained)
    for field, count in (("hypothesis", 72), ("premise", 28)):
        texts = [word_list(row[field]) for row in _rte("validation")]
        there = sum(len(words) >= 5 and f" {' '.join(words)} " in searched for words in texts)
        assert (there, facts["fields"][field]["whole"]) == (count, count)
    assert facts["rows"] == 277
    assert facts["found_in"] == {"super_glue/rte": 107, "super_glue/boolq": 2}


def _rte(split):
    with gzip.open(SHARED / "super_glue" / "rte" / f"{split}.jsonl.gz") as file:
        return [json.loads(line) for line in file]

"""The engine for prompted tasks: the same records as the one for any task, and as stock SeqIO."""

import base64
import json
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import seqio
import tensorflow as tf

from t0.caching import (
    CacheSelection,
    RecordOptions,
    Setup,
    parts,
    prompted_rows,
    record_rows,
    work_plan,
)
from t0.caching.cache_plan import TaskSplit, make_plan
from t0.caching.prompted_rows import Prompt, Renderer, RowRange, render_rows
from t0.caching.running import registered
from t0.caching.split_state import SplitSpec
from t0.caching.verify import verify_cache
from t0.caching.work_plan import OpenedSplits
from t0.config.specification import TaskSpec
from t0.errors import UserError
from t0.evaluation import task_records
from t0.feeding import data_spec
from t0.feeding.batch_examples import find_origin
from t0.feeding.random_access import CachedRecords
from t0.files import tfrecord
from t0.prompts import Template
from t0.sources import documents
from t0.tasks import PromptedSource
from t0.testing import train_vocabulary, write_rows

OPTIONS = RecordOptions(max_dropped_share=0.5)


def names(*templates):
    return tuple(f"weather_{template}(_score_eval)?" for template in templates)


@pytest.fixture
def small_ranges(monkeypatch):
    """Makes a dozen ranges, and several batches in each, of the toy data."""
    monkeypatch.setattr(work_plan, "MIN_ROWS", 100)
    monkeypatch.setattr(prompted_rows, "ROWS_AT_ONCE", 37)


def examples(path):
    with path.open("rb") as file:
        return [tf.train.Example.FromString(record) for record in tfrecord.unframed(file)]


def read(root):
    """What a reader sees: examples of each file in order, and the text of each JSON file."""
    return {
        str(path.relative_to(root)): path.read_text() if path.suffix == ".json" else examples(path)
        for path in sorted(root.rglob("*.*"))
        if not path.name.startswith("rows.")  # only the engine for prompted tasks knows the rows
    }


@pytest.mark.parametrize(
    "templates",
    [
        ("drops",),
        pytest.param(("chance", "own_choices"), marks=pytest.mark.exhaustive),
        pytest.param(("plain", "open", "changes"), marks=pytest.mark.slow),
    ],
)
def test_prompted_caching_records_equal_the_general_engine(
    with_data, cache_here, tmp_path, monkeypatch, small_ranges, templates
):
    outcomes = cache_here(tmp_path / "ranges", *names(*templates), options=OPTIONS)
    assert {o.counts["rows"] for o in outcomes} == {1203, 40}
    monkeypatch.setattr(work_plan, "has_own_form", lambda task, options: False)
    cache_here(tmp_path / "general", *names(*templates), options=OPTIONS)
    ours, general = read(tmp_path / "ranges"), read(tmp_path / "general")
    assert ours.keys() == general.keys()
    assert ours == general
    assert len(ours) > 4 * 2 * len(templates)


def test_prompted_caching_choice_records_have_document_key(
    with_data, cache_here, tmp_path, monkeypatch, small_ranges
):
    monkeypatch.setattr(documents, "OWN_COLUMN", "words")
    cache_here(tmp_path / "ranges", *names("drops"), options=OPTIONS)
    monkeypatch.setattr(work_plan, "has_own_form", lambda task, options: False)
    cache_here(tmp_path / "general", *names("drops"), options=OPTIONS)
    ours, general = read(tmp_path / "ranges"), read(tmp_path / "general")
    assert ours == general
    rows = [json.loads(line) for line in (with_data / "weather" / "default" / "train.jsonl").open()]
    keys = [documents.document_key(row["words"]) for row in rows if len(row["words"]) > 1]
    assert len(set(keys)) < len(keys)
    folder = "weather_drops_score_eval"
    for name, content in ours.items():
        if name.endswith("info.train.json"):
            described = json.loads(content)["features"].get("document")
            assert described == ({"dtype": "string", "shape": []} if folder in name else None)
        elif "train.tfrecord" in name:
            for example in content:
                features = example.features.feature
                assert ("document" in features) == (folder in name)
                if folder in name:
                    row, _ = features["idx"].int64_list.value
                    assert features["document"].bytes_list.value == [keys[row].encode()]


def test_prompted_caching_divides_rows_into_ranges(with_data, prompted, monkeypatch):
    monkeypatch.setattr(work_plan, "MIN_ROWS", 100)
    opened = OpenedSplits()
    request = CacheSelection("/out", tasks=["weather_plain"], splits=["train"])
    plan = make_plan(request, registered("/out", opened), "tag")
    work = work_plan.plan_work(plan.splits, OPTIONS, "/out", opened, Setup())
    assert len(work.row_ranges) == 13
    assert sum(r.stop - r.start for r in work.row_ranges) == 1203


def test_prompted_caching_counts_truncated_and_unknown_text(tmp_path, monkeypatch):
    rows = [
        {"text": "a " * 1200, "label": 0},  # cut at 2,048 characters
        {"text": "b", "label": 0},
        {"text": "☂ in the text only", "label": 2},
        {"text": "c", "label": None},  # withheld: the text '<NO LABEL>' is not the user's
    ]
    write_rows(tmp_path / "data" / "marks" / "train.jsonl", rows)
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "data"))
    # Id 258 is the varint 0x82 0x02, whose second byte is not id 2.
    text = ["abc no good", *(f"x{chr(0x4E00 + n)}" for n in range(300))]
    model = train_vocabulary(tmp_path / "v.model", text, size=500, character_coverage=1.0)
    template = Template(
        *("marks", "{{text}} ||| {{answer_choices[label]}}", "☂ ||| ☀ ||| no"),
        *("", True, False, (), "id"),
    )
    specs = [
        SplitSpec(
            TaskSplit(name, "train", str(tmp_path)),
            name,
            ((0, 4),),
            choices=ranked,
            hide_labels=True,
            lengths=(100, 16),
        )
        for name, ranked in (("plain", False), ("ranked", True))
    ]
    prompts = (Prompt(template, "seed", tuple(specs)),)
    job = RowRange("marks", None, "train", 0, 4, prompts, str(tmp_path))
    renderer = Renderer(model.read_bytes(), 1)
    made = render_rows(job, renderer)
    cut, unknown = "cut at 2,048 characters", "with unknown tokens in their answers"
    assert made["plain"]["counts"] == {cut: 1, unknown: 2, "hidden label": 1}
    equal = "with a wrong choice of the right one's tokens"
    hidden = {"hidden label": 1, "no one correct choice": 1}
    counts = {key: count for key, count in made["ranked"]["counts"].items() if key not in hidden}
    assert counts == {cut: 1, unknown: 4, equal: 2}
    assert made["plain"]["unknown"] == made["ranked"]["unknown"]
    assert (made["plain"]["unknown"][""], made["plain"]["unknown"]["☂"]) == (2, 1)  # "..." too
    assert made["plain"]["truncated"] == {"inputs": 1, "targets": 0}
    ids = sentencepiece.SentencePieceProcessor(model_file=str(model))
    piece = ids.id_to_piece(258)
    assert not renderer.targets([piece], True)[piece].has_unknown
    assert 258 in ids.encode(ids.id_to_piece(258))


def test_prompted_caching_numbers_more_than_128_choices(tmp_path, monkeypatch):
    write_rows(tmp_path / "data" / "many" / "train.jsonl", [{"text": "a", "label": 129}] * 2)
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "data"))
    choices = [f"c{number}" for number in range(130)]
    model = train_vocabulary(tmp_path / "v.model", choices, size=40)
    body = "{{text}} ||| {{answer_choices[label]}}"
    template = Template("many", body, " ||| ".join(choices), "", True, False, (), "id")
    split = TaskSplit("ranked", "train", str(tmp_path))
    spec = SplitSpec(split, "ranked", ((0, 2),), choices=True)
    job = RowRange("many", None, "train", 0, 2, (Prompt(template, "", (spec,)),), str(tmp_path))
    render_rows(job, Renderer(model.read_bytes(), 1))
    (part,) = tmp_path.glob("*.part")
    read = [tf.train.Example.FromString(record) for record in parts.read_records(str(part))]
    found = [tuple(example.features.feature["idx"].int64_list.value) for example in read]
    assert found == [(row, number) for row in range(2) for number in range(130)]


@pytest.mark.parametrize("shards", [{"min_shards": 7}, {"max_shards": 1}])
def test_prompted_caching_sharding_keeps_records_in_order(
    with_data, cache_here, tmp_path, small_ranges, shards
):
    def in_order(root):
        found = {}
        for name, content in read(root).items():
            if ".tfrecord-" in name:
                found.setdefault(name.partition(".tfrecord-")[0], []).extend(content)
        return found

    task = "weather_drops_score_eval"
    cache_here(tmp_path / "default", task, options=OPTIONS)
    options = RecordOptions(max_dropped_share=0.5, **shards)
    outcomes = cache_here(tmp_path / "other", task, options=options)
    assert in_order(tmp_path / "default") == in_order(tmp_path / "other")
    count = shards.get("min_shards", 1)
    assert all(sum(".tfrecord-" in name for name in o.files) == count for o in outcomes)


def test_prompted_caching_engine_applies_to_unchanged_tasks(with_data, prompted):
    def has(name, **changes):
        task = seqio.TaskRegistry.get(name)
        arguments = {
            "source": task.source,
            "output_features": task.output_features,
            "preprocessors": list(task.preprocessors),
            **changes,
        }
        return work_plan.has_own_form(seqio.Task("other", **arguments), RecordOptions())

    steps = list(seqio.TaskRegistry.get("weather_plain").preprocessors)
    features = seqio.TaskRegistry.get("weather_plain").output_features
    assert has("weather_plain")
    assert has("weather_plain_score_eval")
    assert not has("toy_lines")
    assert not has("weather_plain", preprocessors=[lambda ds: ds.take(1), *steps])
    assert not has("weather_plain", preprocessors=[steps[0], *steps[2:]])
    stock = dict(features, inputs=seqio.Feature(seqio.ByteVocabulary()))
    assert not has("weather_plain", output_features=stock)
    assert not work_plan.has_own_form(
        seqio.TaskRegistry.get("weather_plain"), RecordOptions(enable_char_counts=True)
    )


def test_prompted_source_subclass_is_fast_unless_it_overrides_a_method(with_data, prompted, capsys):
    """A subclass with its own records is read with SeqIO, and a note says so."""

    class Described(PromptedSource):
        def __init__(self, **settings):
            super().__init__(**settings)
            self.description = "mine"

        def describe(self):
            return self.description

    class Louder(Described):
        def numbered_records(self, split, indices=None):
            for number, record in super().numbered_records(split, indices):
                yield number, record | {"inputs": record["inputs"].upper()}

    task = seqio.TaskRegistry.get("weather_plain_score_eval")
    names = "dataset", "subset", "template", "split_mapping", "seed_name", "hide_labels"
    settings = {name: getattr(task.source, name) for name in names}

    def with_source(source_type):
        return task.replace(source=source_type(num_rows={"train": 1}.get, **settings))

    quick, louder = with_source(Described), with_source(Louder)
    for each, expected in ((task, True), (quick, True), (louder, False)):
        assert work_plan.has_own_form(each, RecordOptions()) is expected
        assert task_records.has_choices(each) is expected
        assert bool(data_spec.find_rows(each, "train", use_cached=False)) is expected
    note = "note: Louder overrides numbered_records of PromptedSource, so its records are made"
    assert capsys.readouterr().err.count(note) == 1


@pytest.mark.slow
def test_prompted_caching_memory_does_not_grow_with_rows(with_data, prompted, tmp_path):
    """Ten times the rows through a fresh worker's engine, in a process of its own."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's account of a process's memory")
    peaks = []
    for rows in (2_000, 20_000):
        folder = tmp_path / str(rows) / "big" / "default"
        folder.mkdir(parents=True)
        line = json.dumps({"text": "rain and snow " * 30, "words": ["a", "b"], "label": 0}) + "\n"
        (folder / "train.jsonl").write_text(line * rows)
        script = tmp_path / "peak.py"
        script.write_text(PEAK)
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path / str(rows)), str(rows)],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + 12 * 1024, f"{peaks} KiB"
    assert peaks[1] < 400 * 1024


PEAK = """
import functools, os, sys
folder, rows = sys.argv[1], int(sys.argv[2])
from t0 import sources
from t0.caching.cache_plan import RecordOptions, TaskSplit
from t0.caching.prompted_rows import Prompt, Renderer, RowRange, render_rows
from t0.caching.split_state import JoinParts, SplitSpec
from t0.caching.workers import execute
from t0.prompts import Template
sources.set_data_dirs(folder)
renderer = Renderer(open(os.environ["T0_VOCAB"], "rb").read(), 1)
split = TaskSplit("big", "train", f"{folder}/out")
os.makedirs(f"{folder}/parts")
spec = SplitSpec(split, "key", ((0, rows),))
template = Template("p", "{{text}} {{label}} ||| {{words[0]}}", None, "", True, False, (), "p", "w")
job = RowRange("big", None, "train", 0, rows, (Prompt(template, "s", (spec,)),), f"{folder}/parts")
made = execute(job, functools.partial(render_rows, renderer=renderer))
assert made["big"]["records"] == rows, made
path = [f"{folder}/parts/{name}" for name in os.listdir(f"{folder}/parts")]
outcome = execute(JoinParts(spec, path, (made["big"],), RecordOptions(), "0"), None)
assert outcome.stats["examples"] == rows, outcome
assert "tensorflow" not in sys.modules
# Not ru_maxrss, which counts what the parent had before this process took its place.
(high,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(high.split()[1])
"""


def test_prompted_caching_rank_evaluation_numbers_kept_rows(
    with_data, cache_here, tmp_path, small_ranges
):
    cache_here(tmp_path, *names("drops"), options=OPTIONS)
    folder = tmp_path / "weather_drops_score_eval"
    found = [
        list(example.features.feature["idx"].int64_list.value)
        for path in sorted(folder.glob("train.*"))
        for example in examples(path)
    ]
    kept = sum(i % 5 > 0 for i in range(1203))
    assert found == [[row, choice] for row in range(kept) for choice in (0, 1)]


@pytest.mark.parametrize("name", ["weather_drops", "weather_drops_score_eval"])
def test_prompted_caching_records_the_row_of_each_record(
    with_data, cache_here, tmp_path, small_ranges, name
):
    cache_here(tmp_path, *names("drops"), options=OPTIONS)
    folder = tmp_path / name
    file = str(next(folder.glob("train.tfrecord-*")))
    task = TaskSpec(name, 1.0, {}, cache_files=(file,))
    records = CachedRecords(str(folder))
    for number in (0, 1, 500, len(records) - 1):
        origin = find_origin(task, number)
        assert (
            records[number]["inputs_pretokenized"][0]
            .decode()
            .startswith(f"{origin['dataset_row']} ")
        )
        assert origin["dataset_row"] % 5 > 0
        del origin["dataset_row"]
        assert origin == {"dataset": "weather", "split": "train", "prompt": "drops"}
    described = folder / "rows.train.json"
    size = sum(path.stat().st_size for path in folder.glob("train.tfrecord-*"))
    assert described.stat().st_size < 0.05 * size
    assert not list(verify_cache(str(folder)))
    described.write_text(described.read_text().replace('"rows": 1203', '"rows": 12'))
    with pytest.raises(UserError, match=r"rows.train.json is damaged: its mask has"):
        record_rows.read(str(folder), "train")
    (fault,) = verify_cache(str(folder))
    assert "rows.train.json" in fault
    described.unlink()
    assert record_rows.read(str(folder), "train") is None


def test_rows_of_a_mask_of_billions_of_rows_are_refused_without_unpacking_them(tmp_path):
    rows = 2**32 - 8
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(b"\xff" * 2**20) for _ in range(rows // 8 // 2**20 + 1))
    mask = base64.b64encode(packed + packer.flush()).decode()
    source = {"dataset": "d", "subset": None, "split": "train", "prompt": "p", "choices": False}
    (tmp_path / "rows.train.json").write_text(json.dumps({**source, "rows": rows, "mask": mask}))
    with open(tmp_path / "train.tfrecord-00000-of-00001", "wb") as file:
        file.truncate(2**40)  # a sparse file, which has no bytes on the disk
    tracemalloc.start()
    with pytest.raises(UserError, match="its mask has more rows than the split's files have"):
        record_rows.read(str(tmp_path), "train")
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


def test_rows_of_a_mask_in_several_blocks_are_read(monkeypatch):
    monkeypatch.setattr(record_rows, "_BLOCK_ROWS", 16)
    kept = [0, 7, 15, 16, 31, 38]
    mask = record_rows.pack_rows(kept, 0, 39)
    rows = record_rows.RecordRows("d", None, "train", "p", False, rows=39, mask=mask)
    assert rows.numbers.tolist() == kept and rows.numbers.dtype == np.int64

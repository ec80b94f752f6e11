"""A cache records what it was made from, and is stale once that has changed."""

import dataclasses
import functools
import importlib
import io
import json
import os
import shutil
import sys

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t0 import testing
from t0.caching import (
    CacheSelection,
    RecordOptions,
    Setup,
    cache,
    cache_files,
    provenance,
    work_plan,
)
from t0.caching.cache_plan import TaskSplit
from t0.catalogue import PromptedTask
from t0.catalogue.sentence_pieces import Tokens, model_digest
from t0.cli.main import main
from t0.errors import UserError
from t0.feeding import data_spec
from t0.prompts import Template, text_fields
from t0.tasks import task_definitions

PROMPT = Template("ask", "{{tea}}? ||| {{taste}}", "mild ||| bitter", "", True, False, (), "1")
MODULE = """
import functools
import seqio
import tensorflow as tf
import brewing_help

LINES = {{"train": "{folder}/lines.tsv"}}

def lines(split, shuffle_files=False, seed=None):
    return tf.data.TextLineDataset(LINES[split]).map(brewing_help.parts)

def patterns():
    return seqio.TextLineDataSource({{"train": "{folder}/lines.t*"}})

@seqio.map_over_dataset
def parted(line):
    return brewing_help.parts(line)
"""
HELP = """
import tensorflow as tf

def parts(line):
    cells = tf.strings.split(line, "\\t")
    return {"inputs": cells[0], "targets": cells[1]}
"""


@dataclasses.dataclass
class Shop:
    """A folder with prompted data, a module of tasks and its data, and two caches."""

    folder: object
    names: tuple = ("teas_ask", "brewed")

    def register(self, prompt=PROMPT):
        for name in {*self.names, "teas_ask_score_eval"} & {*seqio.TaskRegistry.names()}:
            seqio.TaskRegistry.remove(name)
        task = PromptedTask("teas", None, prompt, {"train": "train"}, {"train": 3})
        for name, arguments in task_definitions(task).items():
            seqio.TaskRegistry.add(name, **arguments)
        module = importlib.import_module("brewing")
        feature = seqio.Feature(
            seqio.SentencePieceVocabulary(str(self.folder / "words.model"), extra_ids=0)
        )
        seqio.TaskRegistry.add(
            "brewed",
            source=seqio.FunctionDataSource(module.lines, splits=["train"]),
            preprocessors=[seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder()],
            output_features={"inputs": feature, "targets": feature},
        )

    def changes(self, folder="cache"):
        directories = {name: str(self.folder / folder / name) for name in self.names}
        return {
            name: provenance.changes_of(seqio.TaskRegistry.get(name), directory)
            for name, directory in directories.items()
        }

    def cache(self, *names, **request):
        lines = io.StringIO()
        request = CacheSelection(str(self.folder / "cache"), tasks=names or self.names, **request)
        made = cache(
            request, RecordOptions(), Setup(module_import=["brewing"]), num_workers=0, file=lines
        )
        return {outcome.split.task for outcome in made}, lines.getvalue()


@pytest.fixture
def shop(clean_registries, tmp_path, monkeypatch):
    (tmp_path / "data" / "teas").mkdir(parents=True)
    rows = [{"tea": "black", "taste": "bitter"}, {"tea": "white", "taste": "mild"}] * 2
    (tmp_path / "data" / "teas" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "lines.tsv").write_text("how long\tfour minutes\nhow hot\tninety degrees\n")
    (tmp_path / "brewing.py").write_text(MODULE.format(folder=tmp_path))
    (tmp_path / "brewing_help.py").write_text(HELP)
    words = ["how long", "how hot", "four minutes", "black white bitter mild?"] * 20
    testing.train_vocabulary(tmp_path / "words.model", words)
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("T0_VOCAB", str(tmp_path / "words.model"))
    monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [])
    monkeypatch.syspath_prepend(tmp_path)
    shop = Shop(tmp_path)
    shop.register()
    shop.cache()
    yield shop
    for name in ("brewing", "brewing_help"):
        sys.modules.pop(name, None)


def same_size(path, old, new):
    assert len(old) == len(new)
    text = path.read_bytes()
    assert old in text
    path.write_bytes(text.replace(old, new))


def other_vocabulary(shop):
    testing.train_vocabulary(shop.folder / "words.model", ["four other minutes of tea"] * 50)


CHANGES = {
    "prompt": (
        lambda shop: shop.register(dataclasses.replace(PROMPT, jinja="Is {{tea}}? ||| {{taste}}")),
        {"teas_ask": "the prompt's jinja"},
    ),
    "choices": (
        lambda shop: shop.register(dataclasses.replace(PROMPT, answer_choices="mild ||| sour")),
        {"teas_ask": "the prompt's answer_choices"},
    ),
    "rows": (
        lambda shop: same_size(shop.folder / "data/teas/train.jsonl", b"black", b"green"),
        {"teas_ask": "the data of split 'train': {folder}/data/teas/train.jsonl"},
    ),
    "lines": (
        lambda shop: same_size(shop.folder / "lines.tsv", b"four", b"five"),
        {"brewed": "the data: {folder}/lines.tsv"},
    ),
    "vocabulary": (
        other_vocabulary,
        dict.fromkeys(("teas_ask", "brewed"), "the vocabulary: {folder}/words.model"),
    ),
    "module": (
        lambda shop: same_size(shop.folder / "brewing.py", b"LINES[split]", b'LINES["t"+1]'),
        {"brewed": "the module brewing: {folder}/brewing.py"},
    ),
    "its import": (
        lambda shop: same_size(shop.folder / "brewing_help.py", b"cells[0]", b"cells[1]"),
        {"brewed": "the module brewing_help: {folder}/brewing_help.py"},
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_stale_cache_is_reported_with_what_changed(shop, kind, capsys):
    change, stale = CHANGES[kind]
    stale = {name: why.format(folder=shop.folder) for name, why in stale.items()}
    assert shop.changes() == {name: [] for name in shop.names}
    change(shop)
    found = {name: changed for name, changed in shop.changes().items() if changed}
    assert found == {name: [why] for name, why in stale.items()}

    # t0 verify
    assert main(["verify", str(shop.folder / "cache"), "--module_import=brewing"]) == 1
    said = capsys.readouterr()
    for name, why in stale.items():
        assert f"{shop.folder}/cache/{name}: stale, changed since it was written: {why}" in said.out
    assert f"2 of 2 caches are whole; {len(stale)} are stale" in said.err

    # training and evaluation
    seqio.add_global_cache_dirs([str(shop.folder / "cache")])
    name, why = next(iter(stale.items()))
    settings = {"module_import": ["brewing"]}
    with pytest.raises(UserError) as refused:
        data_spec.require_current([name], settings=settings)
    command = f"seqio_cache_tasks --tasks={name} --output_cache_dir={shop.folder}/cache"
    assert why in str(refused.value)
    assert f"{command} --module_import=brewing (or " in str(refused.value)
    assert "--allow_stale_cache" in str(refused.value) and "\n" not in str(refused.value)
    (note,) = data_spec.require_current([name], settings=settings, allow_stale=True)
    assert why in note


@dataclasses.dataclass(frozen=True, slots=True)
class ToneTemplate(Template):
    """A template with a field that a later version might add."""

    tone: str = "kind"


def part_key(task):
    """The key of the parts of a prompted task's training split."""
    split = TaskSplit(task.name, "train", "unused")
    work = work_plan.plan_work([split], RecordOptions(), "parts", work_plan.OpenedSplits(), Setup())
    return json.loads(work.specs[split].key)


def test_cache_and_parts_depend_on_a_new_field_of_a_template(shop):
    fields = dataclasses.astuple(PROMPT)
    before = part_key(seqio.TaskRegistry.get("teas_ask"))
    shop.register(ToneTemplate(*fields))
    task = seqio.TaskRegistry.get("teas_ask")
    key, recorded = part_key(task), provenance.provenance(task, ["train"], [])
    shop.register(ToneTemplate(*fields, tone="stern"))
    task = seqio.TaskRegistry.get("teas_ask")
    assert len({json.dumps(each) for each in (before, key, part_key(task))}) == 3
    assert provenance.changes(recorded, task) == ["the prompt's tone"]
    # An earlier version's cache without the field stays valid.
    assert shop.changes()["teas_ask"] == []


def test_cache_and_parts_of_earlier_versions_stay_valid(shop):
    task = seqio.TaskRegistry.get("teas_ask")
    texts = ["{{tea}}? ||| {{taste}}", "mild ||| bitter", True]
    assert part_key(task)["template"] == ["ask", *texts]
    recorded = provenance.provenance(task, ["train"], [])["prompt"]
    assert recorded == dict(
        zip(("jinja", "answer_choices", "truncate"), [*texts[:2], "True"], strict=True)
    )
    label = {"name": "tell", "reference": "a", "id": "2", "where": "b", "metrics": ("BLEU",)}
    other = dataclasses.replace(PROMPT, **label, columns=(("tea", "leaf"),), original_task=False)
    assert text_fields(other) == text_fields(PROMPT)


def test_stale_cache_only_is_rebuilt_with_the_reason(shop):
    assert shop.cache()[0] == set()
    same_size(shop.folder / "lines.tsv", b"four", b"five")
    before = (shop.folder / "cache/teas_ask/COMPLETED").stat().st_mtime_ns
    written, lines = shop.cache()
    assert written == {"brewed"}
    assert f"rebuilding (1): brewed: changed since: the data: {shop.folder}/lines.tsv" in lines
    assert "skipped (1): teas_ask: cached already" in lines
    assert (shop.folder / "cache/teas_ask/COMPLETED").stat().st_mtime_ns == before
    seqio.add_global_cache_dirs([str(shop.folder / "cache")])
    inputs = [
        bytes(e["targets_pretokenized"])
        for e in seqio.TaskRegistry.get("brewed")
        .get_dataset({"inputs": 20, "targets": 20}, "train", use_cached=True, shuffle=False)
        .as_numpy_iterator()
    ]
    assert inputs == [b"five minutes", b"ninety degrees"]
    assert shop.changes() == {name: [] for name in shop.names}


def test_stale_cache_with_absent_split_is_kept(shop):
    shop.register(dataclasses.replace(PROMPT, jinja="{{tea}} tea? ||| {{taste}}"))
    (shop.folder / "data/teas/train.jsonl").unlink()
    for skip in (False, True):
        with pytest.raises(UserError, match="is stale .the prompt's jinja., and no rows"):
            shop.cache("teas_ask", skip_absent_splits=skip)
    assert (shop.folder / "cache/teas_ask/COMPLETED").exists()


def test_cache_provenance_ignores_times_and_locations(shop, monkeypatch):
    recorded = (shop.folder / "cache/brewed/provenance.json").read_text()
    recorded += (shop.folder / "cache/teas_ask/provenance.json").read_text()
    assert str(shop.folder) not in recorded and "train.jsonl" not in recorded
    shutil.copytree(shop.folder / "cache", shop.folder / "elsewhere")
    shutil.move(shop.folder / "data", shop.folder / "moved")
    monkeypatch.setenv("T0_DATA_DIR", str(shop.folder / "moved"))
    for path in (shop.folder / "lines.tsv", shop.folder / "brewing.py"):
        os.utime(path, (1, 1))
    assert shop.changes("elsewhere") == {name: [] for name in shop.names}
    # Another machine: neither data, module nor vocabulary.
    monkeypatch.delenv("T0_DATA_DIR")
    monkeypatch.setenv("T0_VOCAB", "gs://nowhere/words.model")
    for name in ("lines.tsv", "brewing.py", "words.model"):
        (shop.folder / name).unlink()
    assert shop.changes("elsewhere") == {name: [] for name in shop.names}


def test_cache_without_provenance_is_accepted_with_a_note(shop, capsys):
    for name in shop.names:
        (shop.folder / "cache" / name / "provenance.json").unlink()
    (shop.folder / "cache/brewed/COMPLETED").write_text("")
    shop.register(dataclasses.replace(PROMPT, jinja="{{tea}} tea? ||| {{taste}}"))
    written, lines = shop.cache()
    assert written == set()
    assert "skipped (2): teas_ask, brewed: cached already" in lines
    assert "without a record of its inputs" in lines
    seqio.add_global_cache_dirs([str(shop.folder / "cache")])
    (note,) = data_spec.require_current(shop.names, settings={})
    assert note.startswith("2 of 2 caches, such as that of teas_ask, are not compared")
    assert main(["verify", str(shop.folder / "cache")]) == 0
    assert "2 not compared with prompts and data, such as " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tea", "template", "stale"),
    [
        (None, PROMPT, True),
        (None, dataclasses.replace(PROMPT, published=True), False),
        ("green", PROMPT, False),
        ("green", dataclasses.replace(PROMPT, answer_choices="mild ||| bitter |||"), True),
    ],
)
def test_stale_cache_of_earlier_versions_only_with_missing_values(shop, tea, template, stale):
    shop.register(template)
    rows = [{"tea": tea, "taste": "bitter"}, {"tea": "white", "taste": "mild"}]
    (shop.folder / "data/teas/train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = seqio.TaskRegistry.get("teas_ask")
    recorded = provenance.provenance(task, ["train"], [])
    assert ("missing_values" in recorded) is not template.published
    assert provenance.changes(recorded, task) == []
    recorded.pop("missing_values", None)  # as earlier versions wrote it
    phrases = provenance.changes(recorded, task)
    assert len(phrases) == stale
    if stale:
        assert "split 'train'" in phrases[0] and "from row 0 on" in phrases[0]


def test_stale_cache_after_new_record_format(shop, monkeypatch):
    monkeypatch.setattr(provenance, "RECORD_FORMAT", provenance.RECORD_FORMAT + 1)
    written, lines = shop.cache()
    assert written == {*shop.names}
    assert "rebuilding (2): " in lines and "its records have format 4, this version's 5" in lines


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": "3"}', b"{" * 10**5, None])
def test_stale_cache_after_damaged_provenance(shop, content, capsys):
    path = shop.folder / "cache/brewed/provenance.json"
    path.write_bytes(path.read_bytes().replace(b"3", b"4") if content is None else content)
    (why,) = shop.changes()["brewed"]
    assert why == f"{path}: damaged: its bytes are not those that were written"
    assert main(["verify", str(path.parent)]) == 1
    assert capsys.readouterr().out == why + "\n"
    assert shop.cache()[0] == {"brewed"}


def test_cache_provenance_with_wrong_types_is_not_compared(shop):
    made_from = {
        "format": provenance.RECORD_FORMAT,
        "prompt": [],
        "data": 1,
        "named_files": {"a": 1},
    }
    cache_files.write_provenance(str(shop.folder / "cache/brewed"), made_from)
    assert shop.changes()["brewed"] == []


def test_stale_cache_verify_needs_the_module_of_the_task(shop, capsys):
    seqio.TaskRegistry.remove("brewed")
    assert main(["verify", str(shop.folder / "cache/brewed")]) == 0
    told = capsys.readouterr().err
    assert "its task is not registered: add --data_dir or --module_import" in told


def test_cache_provenance_includes_files_of_a_glob_pattern(shop):
    module = importlib.import_module("brewing")
    task = seqio.Task(
        "patterned",
        module.patterns(),
        {"inputs": seqio.Feature(seqio.ByteVocabulary())},
        [module.parted, seqio.CacheDatasetPlaceholder()],
    )
    recorded = provenance.provenance(task, ["train"], ["brewing"])
    assert provenance.changes(recorded, task) == []
    (shop.folder / "lines.txt").write_text("another\tfile\n")
    assert f"the data: {shop.folder}/lines.t*" in provenance.changes(recorded, task)


def test_cache_provenance_includes_files_of_partial_functions(shop):
    def read(split, shuffle_files=False, seed=None, file=""):
        del split, shuffle_files, seed
        return tf.data.TextLineDataset(file)

    path = shop.folder / "lines.tsv"
    task = seqio.Task(
        "bound",
        seqio.FunctionDataSource(functools.partial(read, file=str(path)), splits=["train"]),
        {"inputs": seqio.Feature(seqio.ByteVocabulary())},
        [seqio.CacheDatasetPlaceholder()],
    )
    recorded = provenance.provenance(task, ["train"], [])
    same_size(path, b"four", b"five")
    assert f"the data: {path}" in provenance.changes(recorded, task)


def test_cache_provenance_vocabulary_digest_ignores_sentinels(shop):
    plain = (shop.folder / "words.model").read_bytes()
    with_sentinels = Tokens(str(shop.folder / "words.model")).model
    assert plain != with_sentinels and model_digest(plain) == model_digest(with_sentinels)
    other_vocabulary(shop)
    assert model_digest((shop.folder / "words.model").read_bytes()) != model_digest(plain)
    assert model_digest(b"no model") != model_digest(b"No model")


def test_cache_provenance_sets_have_one_order_in_every_process():
    walk = provenance.CodeWalk()
    walk.visit(functools.partial(print, frozenset("zyxwvutsrqponmlkjihgfedcba")))
    letters = [value for value in walk.values if len(value) == 3]
    assert letters == sorted(letters)
    assert len(letters) == 26


def test_cache_provenance_accepts_a_closure_whose_variable_has_no_value():
    def outer():
        def step(dataset):
            return later(dataset), folder

        folder = "brewing/data"
        if folder == "":
            later = len
        return step

    walk = provenance.CodeWalk()
    walk.visit(outer())
    assert walk.paths == ["brewing/data"]


def test_caching_part_key_includes_arrays_bound_to_a_step():
    def values(weights):
        walk = provenance.CodeWalk()
        walk.visit(functools.partial(len, weights))
        return walk.values

    assert values(np.arange(3)) == values(np.arange(3))
    others = [np.arange(4), np.arange(3.0), np.arange(3)[::-1], np.float32(2)]
    assert all(values(other) != values(np.arange(3)) for other in others)

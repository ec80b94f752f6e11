"""The plan: which tasks, which splits, how many shards. Needs neither data nor TensorFlow."""

import dataclasses
import types

import pytest

from t0.caching.cache_files import shard_count
from t0.caching.cache_plan import CacheSelection, Catalogue, RecordOptions, make_plan, select_tasks
from t0.errors import AbsentData, UserError
from t0.sources import AbsentSplit


def task(name, splits=("train", "validation"), supports_caching=True, rows=None, absent=()):
    def list_shards(split):
        if split in absent:
            raise AbsentData(f"{split} of {name} is nowhere")
        return [split]

    source = types.SimpleNamespace(
        list_shards=list_shards, num_input_examples=lambda split: (rows or {}).get(split)
    )
    return types.SimpleNamespace(
        name=name, splits=splits, supports_caching=supports_caching, source=source
    )


def catalogue(*tasks, mixtures=None, caches=None, cached_splits=("train", "validation")):
    return Catalogue(
        tasks={t.name: t for t in tasks},
        mixtures=mixtures or {},
        cache_of=(caches or {}).get,
        cached_splits=lambda directory: set(cached_splits),
    )


GLUE = catalogue(
    *map(task, ["glue_rte", "glue_rte_score_eval", "glue_mrpc", "squad", "t00_train"]),
    mixtures={"t0++_train": ["squad", "glue_rte"]},
)


@pytest.mark.parametrize(
    ("wanted", "excluded", "selected"),
    [
        ([], [], ["glue_rte", "glue_rte_score_eval", "glue_mrpc", "squad", "t00_train"]),
        (["glue_rte"], [], ["glue_rte"]),
        (["glue_.*"], [".*_score_eval"], ["glue_rte", "glue_mrpc"]),
        (["squad", "glue_mrpc"], [], ["glue_mrpc", "squad"]),
        (["t0++_train"], [], ["glue_rte", "squad"]),
        (["t0++_train", "glue_mrpc"], ["squad"], ["glue_rte", "glue_mrpc"]),
        ([], ["t0++_train", "glue_.*"], ["t00_train"]),
        (["rte|squad"], [], ["squad"]),
    ],
)
def test_cache_plan_task_selection_and_exclusion(wanted, excluded, selected):
    assert select_tasks(GLUE, wanted, excluded)[0] == selected


def test_cache_plan_unknown_task_suggests_the_nearest():
    with pytest.raises(UserError, match=r"'glue_rtee'.*'glue_rte'.*--module_import"):
        select_tasks(GLUE, ["glue_mrpc", "glue_rtee"], [])
    with pytest.raises(UserError, match=r"'t0\+\+_trian'.*'t0\+\+_train'"):
        select_tasks(GLUE, ["t0++_trian"], [])
    with pytest.raises(UserError, match="regex"):
        select_tasks(GLUE, ["glue_(rte"], [])
    with pytest.raises(UserError, match="everything is excluded"):
        make_plan(CacheSelection("/out", excluded_tasks=[".*"]), GLUE, "tag")


def test_cache_plan_exclusion_without_match_is_noted():
    assert make_plan(CacheSelection("/out", excluded_tasks=["qlue"]), GLUE, "t").notes == (
        "--excluded_tasks=qlue matches no task",
    )


def test_cache_plan_largest_task_first_in_staging_folder():
    rows = {"train": 100, "validation": 7}
    plan = make_plan(
        CacheSelection("/out"),
        catalogue(task("a:b", rows=rows), task("c", rows={"train": 150})),
        "tag",
    )
    assert [(u.task, u.name, u.rows) for u in plan.splits] == [
        ("c", "train", 150),
        ("c", "validation", None),
        ("a:b", "train", 100),
        ("a:b", "validation", 7),
    ]
    assert plan.splits[2].directory == plan.tasks["a:b"].staging == "/out/a/b.tag"
    assert plan.tasks["a:b"].final == "/out/a/b"


def test_cache_plan_source_without_row_count():
    failing = task("a")
    failing.source.num_input_examples = lambda split: {}[split]
    assert [
        u.rows for u in make_plan(CacheSelection("/out"), catalogue(failing), "tag").splits
    ] == [None] * 2


@pytest.mark.parametrize(
    ("cache", "overwrite", "ignore", "written"),
    [
        (None, False, False, True),
        ("/out/a", False, False, False),
        ("/out/a", True, False, True),
        ("/out/a", False, True, False),
        ("/out/a", True, True, True),
        ("/p3/a", False, False, False),
        ("/p3/a", True, False, False),
        ("/p3/a", False, True, True),
    ],
)
def test_cache_plan_cached_task_is_skipped_or_overwritten(cache, overwrite, ignore, written):
    request = CacheSelection("/out", overwrite=overwrite, ignore_other_caches=ignore)
    plan = make_plan(request, catalogue(task("a"), caches={"a": cache}), "tag")
    assert ("a" in plan.tasks) == written
    assert ("a" in plan.skipped) == (not written)
    if not written:
        assert cache in plan.skipped["a"]


def test_cache_plan_cache_with_missing_split_is_refused():
    seen = catalogue(task("a"), caches={"a": "/out/a"}, cached_splits=["validation"])
    with pytest.raises(UserError, match="'train'.*--overwrite"):
        make_plan(CacheSelection("/out"), seen, "tag")
    assert make_plan(CacheSelection("/out", splits=["validation"]), seen, "tag").skipped
    # Left out for want of data then, and still: nothing is missing.
    seen = dataclasses.replace(seen, tasks={"a": task("a", absent=["train"])})
    assert make_plan(CacheSelection("/out", skip_absent_splits=True), seen, "tag").skipped


def test_cache_plan_splits_option_restricts_and_must_exist():
    seen = catalogue(task("a"), task("b", splits=("test",)))
    plan = make_plan(CacheSelection("/out", splits=["train"]), seen, "tag")
    assert [(u.task, u.name) for u in plan.splits] == [("a", "train")]
    assert plan.skipped == {"b": "has none of the selected splits"}
    with pytest.raises(UserError, match="'trian'.*'train'"):
        make_plan(CacheSelection("/out", splits=["trian"]), seen, "tag")


def test_cache_plan_absent_splits_are_named_or_skipped():
    seen = catalogue(task("a", absent=["train"]), task("b"), task("c", absent=["validation"]))
    with pytest.raises(UserError) as error:
        make_plan(CacheSelection("/out"), seen, "tag")
    assert "a: split 'train': train of a is nowhere" in str(error.value)
    assert "c: split 'validation'" in str(error.value)
    assert "--skip_absent_splits" in str(error.value)
    plan = make_plan(CacheSelection("/out", skip_absent_splits=True), seen, "tag")
    assert plan.tasks["a"].splits == ("validation",)
    assert plan.tasks["a"].absent == {"train": "train of a is nowhere"}
    assert len(plan.splits) == 4
    all_gone = catalogue(task("a", absent=["train", "validation"]))
    plan = make_plan(CacheSelection("/out", skip_absent_splits=True), all_gone, "tag")
    assert not plan.splits
    assert plan.skipped["a"].startswith("no data")


def test_cache_plan_several_absent_splits_are_one_table(monkeypatch):
    def rows_of(task, split):
        raise AbsentData(f"no {split}", [AbsentSplit("mine", task.name[0], split)])

    monkeypatch.delenv("T0_DATA_DIR", raising=False)
    seen = dataclasses.replace(catalogue(task("a1"), task("a2"), task("b1")), rows_of=rows_of)
    with pytest.raises(UserError) as error:
        make_plan(CacheSelection("/out"), seen, "tag")
    lines = str(error.value).splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("mine/")] == [
        f"DIR/mine/{name}/{split}.jsonl" for name in "ab" for split in ("train", "validation")
    ]
    assert "4 missing splits" in lines[1] and "--skip_absent_splits" in lines[-1]


def test_cache_plan_source_without_files_is_absent():
    empty = task("a", splits=("train",))
    empty.source.list_shards = lambda split: []
    with pytest.raises(UserError, match="no file"):
        make_plan(CacheSelection("/out"), catalogue(empty), "tag")


def test_cache_plan_skips_task_without_caching_support():
    plan = make_plan(CacheSelection("/out"), catalogue(task("a", supports_caching=False)), "tag")
    assert "does not support caching" in plan.skipped["a"]


@pytest.mark.parametrize(
    ("options", "source_shards", "records", "size_bytes", "count"),
    [
        ({}, 1, 277, 10**6, 1),
        ({}, 8, 277, 10**6, 1),
        ({}, 1, 1001, 10**6, 2),
        ({}, 1, 25_000, 60 * 10**6, 16),
        ({}, 1, 10**7, 10**10, 100),
        ({}, 1, 3, 250 * 10**6, 3),
        ({"max_shards": 4}, 1, 25_000, 60 * 10**6, 4),
        ({"max_shards": 2}, 1, 277, 10**6, 2),
        ({"max_shards": 100}, 1, 277, 10**6, 64),
        ({"max_shards": 100}, 80, 277, 10**6, 80),
        ({"min_shards": 64}, 1, 277, 10**6, 64),
        ({"min_shards": 2}, 5, 277, 10**6, 5),
        ({"min_shards": 0}, 5, 277, 10**6, 5),
        ({"min_shards": 64, "max_shards": 10}, 1, 277, 10**6, 10),
    ],
)
def test_cache_plan_shard_count(options, source_shards, records, size_bytes, count):
    assert shard_count(RecordOptions(**options), source_shards, records, size_bytes) == count


def test_caching_public_api():
    import t0.caching

    assert {"RecordOptions", "CacheSelection", "Setup", "cache", "verify_cache"} <= set(
        t0.caching.__all__
    )
    for name in t0.caching.__all__:
        assert getattr(t0.caching, name).__module__.startswith("t0.caching."), name
    with pytest.raises(AttributeError, match="has no attribute cash"):
        _ = t0.caching.cash

"""Counts that are told, and splits that are refused: zero rows, dropped rows, withheld labels."""

import csv
import io
import json
import math
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from t0.caching.cache_plan import RecordOptions, TaskSplit
from t0.caching.split_state import (
    DROPS,
    EMPTY,
    HIDES,
    MISMATCHES,
    Exemption,
    JoinParts,
    SplitSpec,
    conclude,
    exemptions,
)
from t0.errors import UserError

SPLIT = TaskSplit("a_task", "train", "/out/a_task")
TABLE = Path(__file__).parents[2] / "t0" / "caching" / "exemptions.csv"
EXEMPTIONS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))


def conclusion(infos, *known, choices=True, **options):
    """What becomes of a split when these are its parts: an outcome, or its parts are joined."""
    spec = SplitSpec(
        SPLIT,
        "key",
        tuple((info["start"], info["stop"]) for info in infos),
        choices=choices,
        hide_labels=choices,
        template="my template",
        exemptions=known,
    )
    results = {}
    for info in infos:
        assert conclude(spec, results, RecordOptions(**options), "/parts") is None
        results[info["start"]] = info
    return conclude(spec, results, RecordOptions(**options), "/parts")


def info(rows=100, records=100, start=0, **counts):
    named = {name.replace("_", " "): count for name, count in counts.items()}
    return {
        "start": start,
        "stop": start + rows,
        "rows": rows,
        "records": records,
        "counts": named,
        "first": dict.fromkeys(named, start + 7),
    }


def labels(rows=100, start=0, **counts):
    told = info(rows, rows, start)
    named = {name.replace("_", " "): count for name, count in counts.items()}
    return {**told, "labels": named, "first": dict.fromkeys(named, start + 7)}


@pytest.mark.parametrize(
    ("infos", "known", "options", "told"),
    [
        ([info()], (), {}, ""),
        ([info(rendered_nothing=10)], (), {}, ""),
        (
            [info(), info(start=100, rendered_nothing=30)],
            (),
            {},
            "template 'my template' rendered nothing for 30 of 200 rows (15.0%), the first of them "
            "row 107. Mend the template or the data, or allow it: --max_dropped_share=0.16",
        ),
        ([info(rendered_nothing=30)], (), {"max_dropped_share": 0.3}, ""),
        ([info(rendered_nothing=30)], (Exemption(DROPS, "it asks for some"),), {}, ""),
        (
            [info(records=0, rendered_nothing=100)],
            (),
            {"max_dropped_share": 1.0},
            "the data has 100 rows, but none of them gave an example: template 'my template' "
            "renders nothing for any, from row 7 on. Does the template fit the data?",
        ),
        ([info(rows=0, records=0)], (), {}, "the data of split 'train' has no rows at all"),
        (
            [info(), info(start=100, hidden_label=5)],
            (),
            {},
            "the label of 5 of 200 rows is withheld, the first of them row 107: nothing can be "
            "scored against it. Leave the split out (--splits=...), or keep the rows, with no "
            "choice correct: --allow_hidden_labels",
        ),
        ([info(hidden_label=5)], (), {"allow_hidden_labels": True}, ""),
        ([info(hidden_label=5)], (Exemption(HIDES, "withheld"),), {}, ""),
        ([labels(no_label=99)], (), {}, ""),
        ([labels(no_label=100)], (), {"allow_hidden_labels": True}, ""),
        ([labels(no_label=100)], (Exemption(HIDES, "withheld"),), {}, ""),
        (
            [labels(no_label=100, target_is_no_choice=100), labels(start=100, no_label=100)],
            (Exemption(MISMATCHES, "spelled otherwise"),),
            {},
            "the target of all 200 rows is <NO LABEL>, from row 7 on: template 'my template' "
            "prints nothing after '|||'. Is the column of the label empty or withheld, or does "
            "the template not expect its values? Mend the template or the data, leave the split "
            "out (--splits=...), or keep it: --allow_hidden_labels",
        ),
        ([labels(target_is_no_choice=99)], (), {}, ""),
        ([labels(target_is_no_choice=100)], (Exemption(MISMATCHES, "so"),), {}, ""),
        (
            [labels(target_is_no_choice=100)],
            (),
            {},
            "the target of none of 100 rows is among its answer choices, from row 7 on: nothing "
            "can be scored. Does template 'my template' spell its targets as its choices (case, "
            "spaces, 1.0 for 1)? Mend it, or leave the task out",
        ),
    ],
)
def test_split_state_refused_or_accepted_by_counts(infos, known, options, told):
    concluded = conclusion(infos, *known, **options)
    assert getattr(concluded, "message", "") == told
    assert isinstance(concluded, JoinParts) == (not told)


def test_split_state_first_bad_row_is_of_the_first_range():
    infos = [info(start=0, rendered_nothing=50), info(start=100, rendered_nothing=50)]
    assert "first of them row 7." in conclusion(infos).message


def test_split_state_hidden_labels_allowed_without_choices():
    concluded = conclusion([info(hidden_label=100)], choices=False)
    assert (type(concluded), concluded.notes) == (JoinParts, ())


def test_split_state_known_exemptions_are_noted():
    drops = Exemption(DROPS, "asks for some", rows=100, kept=70)
    assert conclusion([info(rendered_nothing=30)], drops).notes == ("known: asks for some",)
    assert conclusion([info(rendered_nothing=31)], drops).notes == (
        "known: asks for some",
        "P3 has 70 of these rows, here are 69",
    )
    nothing = Exemption(DROPS, "needs the answer", rows=100, kept=0)
    outcome = conclusion([info(records=0, rendered_nothing=100)], nothing)
    assert (outcome.status, outcome.message) == (EMPTY, "")


def test_split_state_known_choice_mismatch_is_noted():
    infos = [labels(target_is_no_choice=100)]
    assert conclusion(infos, Exemption(MISMATCHES, "so")).notes == ("known: so",)
    plain = conclusion(infos, choices=False)
    assert (type(plain), plain.notes) == (JoinParts, ())


def test_split_state_exemption_table_lookup():
    (row,) = exemptions("glue", "mrpc", "train", "generate_paraphrase")
    assert (row.kind, row.rows, row.kept) == (DROPS, 3668, 2474)
    assert exemptions("glue", "mrpc", "train", "same thing") == ()
    (row,) = exemptions("super_glue", "rte", "test", "should assume")
    assert row.kind == HIDES
    (row,) = exemptions("imdb", None, "test", "Negation template for positive and negative")
    assert row.kind == MISMATCHES
    assert exemptions("my_data", None, "test", "should assume") == ()
    assert all(row["reason"] for row in EXEMPTIONS)


def test_split_state_exemptions_name_catalogue_templates(clean_registries):
    from t0.catalogue.entries import catalogue_entries

    have = {
        (e.task.dataset, e.task.subset or "", split, e.task.template.name): rows
        for e in catalogue_entries()
        for split, rows in e.task.num_rows.items()
    }
    for row in EXEMPTIONS:
        if row["kind"] == DROPS:
            for name in row["templates"].split("|"):
                place = (row["dataset"], row["subset"], row["split"], name)
                assert have[place] == int(row["rows"]), place
        elif row["kind"] == MISMATCHES:
            assert (row["dataset"], row["subset"], "test", row["templates"]) in have


def test_split_state_faulty_tasks_are_refused_and_named(with_data, cache_here, tmp_path):
    tasks = ("nothing", "fails", "no_column", "drops", "plain_hidden", "plain_hidden_score_eval")
    with pytest.raises(UserError) as error:
        cache_here(tmp_path, *(f"weather_{task}" for task in tasks), "weather_open")
    told = str(error.value)
    assert "5 of 7 tasks could not be cached" in told
    assert (
        "weather_nothing split 'train': the data has 1,203 rows, but none of them gave an example"
        in told
    )
    assert "weather_fails split 'train': templates.yaml:1: template 'fails' failed on row 4" in told
    assert "weather_no_column split 'train': template 'no_column' uses the column 'wrods'" in told
    assert "weather_drops split 'train': template 'drops' rendered nothing for 241 of 1,203" in told
    assert "weather_plain_hidden_score_eval split 'test': the label of 12 of 12 rows" in told
    # Training on withheld labels is the plain task's own business.
    assert sorted(p.name for p in tmp_path.iterdir()) == ["weather_open", "weather_plain_hidden"]


LABELS = {
    "integers.jsonl": [0, 1, 1, 0],
    "floats.jsonl": [0.0, 1.0, 1.0, 0.0],
    "texts.jsonl": ["0", "1", "1.0", "0"],
    "floats.csv": [0.0, 1.0, 1.0, 0.0],
    "floats.parquet": [0.0, 1.0, 1.0, 0.0],
    "bytes.parquet": [b"0", b"1", b"1", b"0"],
}
WRONG = {
    "outside.jsonl": (2, "column 'label' is 2, which selects none of the 2 choices"),
    "half.csv": (0.5, "column 'label' is 0.5, which selects none"),
    "words.jsonl": ("yes", "column 'label' is 'yes', which selects none"),
    "bytes.parquet": (b"\xff", r"column 'label' contains bytes that are not valid"),
}


def _write(path, labels):
    rows = [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        path.write_text("text,label\n" + "".join(f"{r['text']},{r['label']}\n" for r in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def cache_labels(prompted, with_data, cache_here, tmp_path, clean_registries, monkeypatch):
    """Caches the two tasks of a template over data of one's own; returns their files' bytes."""
    import seqio

    from t0.tasks import PromptedTask, task_definitions

    def run(name, labels, *, jinja="Wet? {{text}} ||| {{answer_choices[label]}}", engine="ranges"):
        task_name = f"{name.replace('.', '_')}_{engine}"
        folder = tmp_path / "labels" / task_name
        folder.mkdir(parents=True)
        _write(folder / f"train{Path(name).suffix}", labels)
        monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "labels"))
        template = prompted.template("a", jinja)
        task = PromptedTask(task_name, None, template, {"train": "train"}, {"train": len(labels)})
        for registered, arguments in task_definitions(task).items():
            seqio.TaskRegistry.add(registered, **arguments)
        with monkeypatch.context() as patch:
            if engine == "general":
                patch.setattr("t0.caching.work_plan.has_own_form", lambda task, options: False)
            outcomes = cache_here(tmp_path / "out", f"{task_name}_a.*")
        return {
            outcome.split.task.removeprefix(task_name): b"".join(
                path.read_bytes()
                for path in sorted((tmp_path / "out" / outcome.split.task).glob("train.tfrecord*"))
            )
            for outcome in outcomes
        }

    return run


@pytest.mark.parametrize("engine", ["ranges", "general"])
def test_split_state_label_types_give_the_same_records(cache_labels, engine):
    made = {name: cache_labels(name, some, engine=engine) for name, some in LABELS.items()}
    first = made["integers.jsonl"]
    assert sorted(first) == ["_a", "_a_score_eval"]
    assert b"<NO LABEL>" not in first["_a"]
    assert all(some == first for some in made.values())


@pytest.mark.parametrize("name", WRONG)
def test_split_state_invalid_label_names_row_and_column(cache_labels, name):
    wrong, told = WRONG[name]
    given = [b"0", b"1", wrong] if isinstance(wrong, bytes) else [0, 1, wrong]
    with pytest.raises(UserError) as error:
        cache_labels(name, given)
    assert f"template 'a' failed on row 2: {told}" in str(error.value)
    assert "_a split 'train'" in str(error.value)
    assert "_a_score_eval split 'train'" in str(error.value)


@pytest.mark.parametrize("engine", ["ranges", "general"])
def test_split_state_split_without_labels_is_refused(cache_labels, engine):
    with pytest.raises(UserError) as error:
        cache_labels("none.parquet", [math.nan] * 3, engine=engine)
    told = str(error.value)
    assert f"none_parquet_{engine}_a split 'train': the target of all 3 rows is <NO LABEL>" in told
    assert "_a_score_eval split 'train': the target of all 3 rows is <NO LABEL>" in told


@pytest.mark.parametrize("engine", ["ranges", "general"])
def test_split_state_warns_of_a_class_without_examples(cache_labels, engine, tmp_path):
    def notes(name, labels):
        cache_labels(f"{name}.jsonl", labels, engine=engine)
        manifest = tmp_path / "out" / f"{name}_jsonl_{engine}_a_score_eval" / "COMPLETED"
        return json.loads(manifest.read_text())["splits"]["train"]["notes"]

    assert notes("both", [0, 1, 0]) == []
    assert notes("one", [0, 0, 0]) == [
        "WARNING: train has no example of the class 'Yes', so it cannot measure its recall"
    ]


@pytest.mark.parametrize("engine", ["ranges", "general"])
def test_split_state_choices_without_the_target_are_refused(cache_labels, engine):
    with pytest.raises(UserError) as error:
        cache_labels("floats.parquet", [0.0, 1.0], jinja="{{text}} ||| {{label}}", engine=engine)
    told = str(error.value)
    assert "1 of 2 tasks could not be cached" in told
    assert (
        f"floats_parquet_{engine}_a_score_eval split 'train': the target of none of 2 rows" in told
    )
    assert "from row 0 on" in told


def test_split_state_own_rows_without_target_are_left_out(with_data, cache_here, tmp_path):
    task = "weather_plain_late_score_eval"
    (outcome,) = cache_here(tmp_path / "left_out", task)
    counts = outcome.counts["rows"], outcome.counts["without a target (left out)"]
    assert (*counts, outcome.stats["examples"]) == (1203, 502, 2 * 701)
    options = RecordOptions(allow_hidden_labels=True)
    (outcome,) = cache_here(tmp_path / "kept", task, options=options)
    counts = outcome.counts["rows"], outcome.counts["hidden label"]
    assert (*counts, outcome.stats["examples"]) == (1203, 502, 2 * 1203)


@pytest.mark.parametrize("engine", ["ranges", "general"])
def test_split_state_missing_labels_are_never_trained(cache_labels, engine):
    made = [
        cache_labels("labels.csv", ["", 1, 0, "", 0], engine=engine),
        cache_labels("labels.parquet", [math.nan, 1.0, 0.0, None, 0.0], engine=engine),
    ]
    for files in made:
        plain, ranked = files["_a"], files["_a_score_eval"]
        assert b"<NO LABEL>" not in plain + ranked
        assert (plain.count(b"Wet? text"), ranked.count(b"Wet? text")) == (3, 6)
        assert b"text 0" not in plain + ranked and b"text 3" not in plain + ranked
    assert made[0] == made[1]


def test_split_state_same_faults_in_the_general_engine(
    with_data, cache_here, tmp_path, monkeypatch
):
    monkeypatch.setattr("t0.caching.work_plan.has_own_form", lambda task, options: False)
    with pytest.raises(UserError) as error:
        cache_here(tmp_path, "weather_nothing", "weather_drops", "weather_plain_hidden_score_eval")
    told = str(error.value)
    assert (
        "weather_nothing split 'validation': the data has 40 rows, but none of them gave an example"
        in told
    )
    assert "rendered nothing for 241 of 1,203 rows (20.0%), the first of them row 0" in told
    assert "the label of 12 of 12 rows is withheld, the first of them row 0" in told


def test_split_state_counts_are_shown_and_recorded(with_data, cache_here, tmp_path):
    file = io.StringIO()
    cache_here(tmp_path, "weather_drops", options=RecordOptions(max_dropped_share=0.5), file=file)
    (line,) = [
        line
        for line in file.getvalue().splitlines()
        if line.startswith("weather_drops") and " train " in line
    ]
    assert line.split()[:5] == ["weather_drops", "train", "1,203", "962", "241"]
    # The toy vocabulary has no capital letters: the choices are No and Yes.
    unknown = "with unknown tokens in their answers"
    assert f" 241 rendered nothing, 962 {unknown} (of 1,203 rows); inputs: 962 have " in line
    manifest = json.loads((tmp_path / "weather_drops" / "COMPLETED").read_text())
    counts = {"rows": 1203, "rendered nothing": 241, unknown: 962}
    assert manifest["splits"]["train"]["counts"] == counts


def test_split_state_known_empty_split_is_left_out(with_data, cache_here, tmp_path, monkeypatch):
    def some(dataset, subset, split, template):
        return (Exemption(DROPS, "asks for the answer", 40, 0),) if split == "validation" else ()

    monkeypatch.setattr("t0.caching.work_plan.exemptions", some)
    monkeypatch.setattr("tests.caching.toy_prompted_tasks.ROWS", {})
    text = "{% if text.split()[0]|int > 39 %}{{text}} ||| x{% endif %}"
    import seqio

    from tests.caching.toy_prompted_tasks import template

    source = seqio.TaskRegistry.get("weather_open").source
    monkeypatch.setattr(source, "template", template("late", text, None))
    monkeypatch.delitem(source.__dict__, "compiled", raising=False)
    outcomes = cache_here(tmp_path, "weather_open")
    assert {o.split.name: o.status for o in outcomes} == {"train": "written", "validation": "empty"}
    manifest = json.loads((tmp_path / "weather_open" / "COMPLETED").read_text())
    assert manifest["empty_splits"] == {"validation": "nothing, as known: asks for the answer"}
    assert cache_here(tmp_path, "weather_open") == []
    source.__dict__.pop("compiled", None)


def test_split_state_counts_equal_p3(
    shared_data, cache_here, tmp_path, monkeypatch, clean_registries
):
    """Where the copies are complete: as many examples as the published caches have."""
    import seqio

    from t0.catalogue.entries import catalogue_entries
    from t0.tasks import task_definitions

    wanted = re.compile("glue_mrpc_generate.*|trec_fine_grained_(ABBR|LOC)|wiki_qa_Jeopardy_style")
    for entry in catalogue_entries():
        if wanted.fullmatch(entry.task.name) and entry.task.name not in seqio.TaskRegistry.names():
            arguments = task_definitions(entry.task)[entry.task.name]
            seqio.TaskRegistry.add(entry.task.name, **arguments)
    monkeypatch.setenv("T0_DATA_DIR", str(shared_data / "data"))
    monkeypatch.setenv("T0_VOCAB", str(shared_data / "vocab" / "t5.spiece.model"))
    monkeypatch.setattr("t0.sources.hub.why_not_tried", lambda name: "not asked in tests")
    outcomes = cache_here(tmp_path, wanted.pattern, skip_absent_splits=True)
    assert {(o.split.task, o.split.name): o.stats["examples"] for o in outcomes} == {
        ("glue_mrpc_generate_paraphrase", "train"): 2474,
        ("glue_mrpc_generate_paraphrase", "validation"): 279,
        ("glue_mrpc_generate_paraphrase", "test"): 1147,
        ("glue_mrpc_generate_sentence", "train"): 2474,
        ("glue_mrpc_generate_sentence", "validation"): 279,
        ("glue_mrpc_generate_sentence", "test"): 1147,
        ("trec_fine_grained_ABBR", "train"): 86,
        ("trec_fine_grained_ABBR", "test"): 9,
        ("trec_fine_grained_LOC", "train"): 835,
        ("trec_fine_grained_LOC", "test"): 81,
        ("wiki_qa_Jeopardy_style", "validation"): 140,
    }
    assert not any("P3 has" in note for o in outcomes for note in o.notes)

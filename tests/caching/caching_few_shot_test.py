"""Few-shot tasks are cached without TensorFlow: equal records, counts, refusals, and staleness."""

import copy
import io
import json
import re
import tempfile

import pytest
import seqio
from seqio import experimental

from t0.caching import CacheSelection, RecordOptions, Setup, cache, estimate, provenance, work_plan
from t0.catalogue import PromptedTask
from t0.catalogue.prompted_task import FewShotForm
from t0.cli import main as cli
from t0.errors import UserError
from t0.prompts import model_prompts, read_template_file
from t0.prompts.few_shot import FewShot
from t0.prompts.model_prompts import read_model_prompts
from t0.sources.mixture_files import read_mixtures
from t0.tasks import task_definitions
from t0.tasks.few_shot_tasks import add_mixture_tasks
from t0.tasks.prompted_tasks import prompts_of_mixture
from t0.tasks.seqio_order import seqio_order
from t0.testing import train_vocabulary, write_dataset
from t0.training import model_directory
from tests.caching.caching_prompted_rows_test import read

PROMPTS = {
    "ask": ("{{text}}? ||| {{answer_choices[label]}}", "no ||| yes"),
    # Renders nothing for some rows, so that the examples are not numbered as the rows.
    "some": (
        "{% if label or id % 3 %}Say {{text}}. ||| {{answer_choices[label]}}{% endif %}",
        "n ||| y",
    ),
}
TRAIN = [{"text": f"day {n // 2}", "label": n % 2, "id": n} for n in range(40)]
SPLITS = {
    "train": TRAIN,
    # Row 4 is longer than the others.
    "validation": [
        {"text": f"night {n}" + " 9" * 20 * (n == 4), "label": 1, "id": n} for n in range(9)
    ],
}


@pytest.fixture
def register(clean_registries, tmp_path, monkeypatch):
    """A function that registers the few-shot tasks of two prompts, with settings."""
    folder = write_dataset(tmp_path / "data" / "mine", PROMPTS, SPLITS)
    train_vocabulary(tmp_path / "v.model", [*map(str, TRAIN), "Say day night no yes n y."] * 3)
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("T0_VOCAB", str(tmp_path / "v.model"))
    monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [])
    templates = read_template_file(folder / "templates.yaml").templates
    mapping = {split: split for split in SPLITS}

    def register(**settings):
        for name in [*seqio.TaskRegistry.names()]:
            if name.startswith("mine_"):
                seqio.TaskRegistry.remove(name)
        pairs = tuple((template, f"mine_{template.name}") for template in templates)
        settings = FewShot(**{"k": 3, "length": 1000, **settings})
        form = FewShotForm(settings, () if settings.same_template else pairs)
        for template in templates:
            task = PromptedTask(
                "mine",
                None,
                template,
                mapping,
                {s: len(r) for s, r in SPLITS.items()},
                few_shot=form,
            )
            for name, arguments in task_definitions(task).items():
                seqio.TaskRegistry.add(name, **arguments)

    return register


def cache_into(folder, *tasks, **options):
    file = io.StringIO()
    cache(
        CacheSelection(str(folder), tasks=tasks or ("mine_.*",), ignore_other_caches=True),
        RecordOptions(max_dropped_share=options.pop("max_dropped_share", 0.3)),
        Setup(),
        num_workers=0,
        file=file,
        **options,
    )
    return file.getvalue().partition("\ntask ")[2].rpartition(" tasks cached in")[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"length": 40, "budget": 31},
        {"balance": "labels", "k": 2, "exclude_self": False, "seed": 4},
        {"same_template": False},
        {"length": 42, "if_none_fits": "drop"},
    ],
)
def test_records_equal_those_of_the_general_engine(register, tmp_path, monkeypatch, settings):
    register(**settings)
    # The general engine does not look for characters that the vocabulary does not have.
    table = re.sub(r"(; )?inputs: .*", "", cache_into(tmp_path / "ranges"))
    monkeypatch.setattr(work_plan, "has_own_form", lambda task, options: False)
    assert [line.rstrip() for line in cache_into(tmp_path / "general").split("\n")] == [
        line.rstrip() for line in table.split("\n")
    ]
    ours, general = read(tmp_path / "ranges"), read(tmp_path / "general")
    assert ours == general
    k = settings.get("k", 3)
    assert {name.partition("/")[0] for name in ours} == {
        f"mine_{name}_{k}shot{suffix}" for name in PROMPTS for suffix in ("", "_score_eval")
    }
    if "length" in settings:
        assert re.search("Exemplars: [1-3] before .*, 0 before 1 row;", table)
    dropped = "1 without an exemplar that fits (left out) (of 9 rows)"
    assert (dropped in table) == ("if_none_fits" in settings)
    inputs = ours[f"mine_ask_{k}shot/validation.tfrecord-00000-of-00001"][0].features.feature
    texts = inputs["inputs_pretokenized"].bytes_list.value[0].decode().split("\n\n\n")
    assert texts[-1] == "night 0?\n\n"
    assert (len({text[:3] for text in texts[:-1]} & {"Say"}) == 1) <= (
        settings == {"same_template": False}
    )


@pytest.mark.parametrize("k", [0, 2])
def test_records_with_outer_templates_equal_those_of_the_general_engine(
    register, tmp_path, monkeypatch, k
):
    # No row is too long for a zero-shot task, whose inputs are truncated.
    register(k=k, outer_templates=("Say {inputs} ok", "{choices}: {inputs}"), length=40 if k else 3)
    table = cache_into(tmp_path / "ranges")
    monkeypatch.setattr(work_plan, "has_own_form", lambda task, options: False)
    cache_into(tmp_path / "general")
    ours = read(tmp_path / "ranges")
    assert ours == read(tmp_path / "general")
    assert ("Exemplars:" in table) == bool(k)
    texts = [
        example.features.feature["inputs_pretokenized"].bytes_list.value[0].decode()
        for example in ours[f"mine_ask_{k}shot/validation.tfrecord-00000-of-00001"]
    ]
    starts = [text.rpartition("\n\n\n")[2][:8] for text in texts]
    assert {*starts} == {"Say nigh", "no; yes:"}


def test_cache_with_other_outer_templates_is_stale(register, tmp_path):
    for templates in ([], ["Say {inputs}"], ["Do {inputs}"]):
        register(k=1, outer_templates=tuple(templates))
        task = seqio.TaskRegistry.get("mine_ask_1shot")
        prompt = provenance.provenance(task, ["validation"], [])["prompt"]["few_shot"]
        assert ("outer_templates" in prompt) == bool(templates)
        assert all(template in prompt for template in templates)


def test_exemplars_may_have_the_templates_of_other_tasks(register, tmp_path):
    register(same_template=False)
    cache_into(tmp_path / "out", "mine_ask_3shot")
    starts = {
        text[:3]
        for name, content in read(tmp_path / "out").items()
        if ".tfrecord" in name
        for example in content
        for text in example.features.feature["inputs_pretokenized"]
        .bytes_list.value[0]
        .decode()
        .split("\n\n\n")[:-1]
    }
    assert starts == {"Say", "day"}


def test_splits_without_room_for_exemplars_are_refused(register, tmp_path):
    register(length=9)
    with pytest.raises(
        Exception, match=r"no exemplar fits before any of 9 rows: set a larger `length`"
    ):
        cache_into(tmp_path / "out", "mine_ask_3shot")
    register(budget=30, k=1, if_none_fits="drop")
    with pytest.raises(
        Exception, match="without an exemplar that fits .left out.*--max_dropped_share="
    ):
        cache_into(tmp_path / "out", "mine_ask_1shot", max_dropped_share=0.1)
    register(k=41)
    with pytest.raises(UserError, match="41 exemplars, but its split 'train' has only 40 rows"):
        cache_into(tmp_path / "out", "mine_ask_41shot")


def test_a_cache_is_stale_if_the_split_with_the_exemplars_changed(register, tmp_path):
    register()
    cache_into(tmp_path / "out", "mine_ask_3shot")
    task = seqio.TaskRegistry.get("mine_ask_3shot")
    folder = str(tmp_path / "out" / "mine_ask_3shot")
    assert provenance.changes_of(task, folder) == []
    path = tmp_path / "out" / "mine_ask_3shot" / "provenance.json"
    recorded = json.loads(path.read_text())
    recorded["data"] = {name: x for name, x in recorded["data"].items() if name != "train"}
    (train,) = (tmp_path / "data" / "mine").glob("train.*")
    train.write_bytes(train.read_bytes().replace(b"day 7", b"day 8"))
    (change,) = provenance.changes(recorded, task)
    assert change.startswith("the data of the exemplars: ")
    register(seed=1)
    assert "the prompt's few_shot" in provenance.changes_of(
        seqio.TaskRegistry.get("mine_ask_3shot"), folder
    )


def test_the_table_names_separators_without_tokens(register, tmp_path):
    register()
    assert "x_y_delimiter and example_separator: the vocabulary has no token" in cache_into(
        tmp_path / "a"
    )
    register(x_y_delimiter=" day ", example_separator=" night ")
    assert "the vocabulary has no token" not in cache_into(tmp_path / "b")


def test_gin_defines_few_shot_tasks(register):
    register()
    for name in [*seqio.TaskRegistry.names()]:
        task = seqio.TaskRegistry.get(name)
        if "_3shot" in name:
            task.source.few_shot = None
            seqio.TaskRegistry.remove(name)
            seqio.TaskRegistry.add_provider(
                name.replace("_3shot", ""), task.replace(name=name.replace("_3shot", ""))
            )
    entry = {"tasks": ["x"], "few_shot": {"of": ["mine_ask.*"], "k": 2}}
    add_mixture_tasks(read_mixtures({"mix": entry}, "gin"))
    made = {name for name in seqio.TaskRegistry.names() if "shot" in name}
    assert made == {"mine_ask_2shot", "mine_ask_2shot_score_eval"}
    first = next(seqio.TaskRegistry.get("mine_ask_2shot").source.records("validation"))
    assert first["inputs"].count("\n\n\n") == 2


def test_estimate_leaves_no_file(register, tmp_path, monkeypatch, capsys):
    register(order="seqio")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    selection = CacheSelection(str(tmp_path / "out"), tasks=("mine_ask_3shot",))
    estimate(selection, RecordOptions(), Setup())
    assert "mine_ask_3shot" in capsys.readouterr().out
    assert not [*(tmp_path / "temporary").iterdir()]


def test_seqios_order_equals_its_few_shot_source(register, tmp_path):
    texts = {"x_y_delimiter": "", "inputs_prefix": "Q: ", "targets_prefix": " A:"}
    register(order="seqio", k=3, seed=5, example_separator=" ## ", **texts)
    cache_into(tmp_path / "out", "mine_ask_3shot")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine_ask_3shot"]
    few_shot = seqio.TaskRegistry.get("mine_ask_3shot").source
    zero_shot = copy.copy(few_shot)
    zero_shot.few_shot = None
    theirs = experimental.FewshotDataSource(
        zero_shot, 3, train_feature_keys=("inputs", "targets")
    ).get_dataset("validation", shuffle=True, seed=5)
    # Their source shuffles the rows too. Compare the blocks with ours, which keep the rows' order.
    del texts["x_y_delimiter"]
    theirs = experimental.fewshot_preprocessor(theirs, example_separator=" ## ", **texts)
    theirs = [each["inputs"].decode() for each in theirs.as_numpy_iterator()]
    ours = [each["inputs"] for each in few_shot.records("validation")]

    def shots(prompts):
        return [prompt.rpartition(" ## ")[0] for prompt in prompts]

    assert shots(ours) == shots(theirs)
    assert sorted(p.rpartition(" ## ")[2] for p in ours) == sorted(
        p.rpartition(" ## ")[2] for p in theirs
    )
    cached = read(tmp_path / "out" / "mine_ask_3shot")["validation.tfrecord-00000-of-00001"]
    stored = [
        example.features.feature["inputs_pretokenized"].bytes_list.value[0].decode()
        for example in cached
    ]
    assert stored == ours
    register(order="seqio", k=3, example_separator=" ## ", **texts, x_y_delimiter="")
    unshuffled = experimental.FewshotDataSource(
        zero_shot, 3, train_feature_keys=("inputs", "targets")
    ).get_dataset("validation", shuffle=False)
    unshuffled = experimental.fewshot_preprocessor(unshuffled, example_separator=" ## ", **texts)
    source = seqio.TaskRegistry.get("mine_ask_3shot").source
    assert [each["inputs"].decode() for each in unshuffled.as_numpy_iterator()] == [
        each["inputs"] for each in source.records("validation")
    ]
    with pytest.raises(UserError, match="row .* is not rendered, so SeqIO's order is undefined"):
        list(seqio.TaskRegistry.get("mine_some_3shot").source.records("train"))
    with pytest.raises(UserError, match="`order: seqio` fixes the exemplars: leave out `balance`"):
        register(order="seqio", balance="labels")


def test_training_stores_exemplars_and_says_so(register, tmp_path, capsys):
    lengths = {"inputs": 64, "targets": 8}
    register()
    prompts = prompts_of_mixture("mine_ask_3shot_score_eval", lengths)
    model_directory.save_prompts(str(tmp_path), prompts.to_json(), prompts.vocabulary)
    assert "prompts.json stores 3 rows of the training data" in capsys.readouterr().out
    (stored,) = read_model_prompts(str(tmp_path)).prompts
    assert stored.task == "mine_ask_3shot"
    assert {exemplar.inputs for exemplar in stored.exemplars} <= {
        f"{row['text']}?" for row in TRAIN
    }
    assert len(stored.exemplars) == 3
    register(store=False)
    prompts = prompts_of_mixture("mine_ask_3shot", lengths)
    assert prompts.prompts[0].exemplars == ()
    model_directory.save_prompts(str(tmp_path), prompts.to_json(), prompts.vocabulary)
    assert capsys.readouterr().out == ""
    next((tmp_path / "data" / "mine").glob("train.*")).unlink()
    register(seed=9)
    assert prompts_of_mixture("mine_ask_3shot", lengths).prompts[0].exemplars == ()
    assert "no exemplars are stored for predictions" in capsys.readouterr().err


def test_training_stores_no_more_exemplars_than_predictions_read(register, tmp_path, monkeypatch):
    monkeypatch.setattr(model_prompts, "_MOST_EXEMPLARS", 2)
    register()
    prompts = prompts_of_mixture("mine_ask_3shot", {"inputs": 64, "targets": 8})
    assert len(prompts.prompts[0].exemplars) == 2
    (tmp_path / "prompts.json").write_text(prompts.to_json())
    (stored,) = read_model_prompts(str(tmp_path)).prompts
    assert stored.exemplars == prompts.prompts[0].exemplars


def test_show_prints_the_exemplars_of_seqios_order(register, tmp_path, capsys):
    mixture = "m: {tasks: [mine_ask_2shot], few_shot: {of: [mine_ask], k: 2, order: seqio}}"
    (tmp_path / "data" / "mixtures.yaml").write_text(mixture)
    assert cli.main(["show", "mine_ask_2shot", "--split=validation", "--row=3"]) == 0
    first, second = seqio_order(40, 9, k=2, seed=0)[6:8]
    assert f"2 exemplars, rows {first}, {second}" in " ".join(capsys.readouterr().out.split())

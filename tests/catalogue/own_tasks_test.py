"""A user's own folders become tasks and mixtures: from config alone, and mistakes are explained."""

import json

import pytest

from t0.errors import UserError

REVIEWS = """
dataset: reviews
templates:
  a: !Template
    name: good or bad?
    jinja: '{{text}} Good or bad? ||| {{answer_choices[label]}}'
    answer_choices: bad ||| good
    metadata: !TemplateMetadata
      original_task: true
      metrics: [Accuracy]
  b: !Template
    name: write one
    jinja: 'Write a review. ||| {{text}}'
    metadata: !TemplateMetadata
      metrics: [BLEU, ROUGE]
"""
CB = """
dataset: super_glue
subset: cb
templates:
  a: !Template
    name: my own
    jinja: '{{premise}} So {{hypothesis}}? ||| {{answer_choices[label]}}'
    answer_choices: yes ||| no ||| maybe
    metadata: !TemplateMetadata {}
  b: !Template
    name: my open one
    jinja: 'What follows from {{premise}} ||| {{hypothesis}}'
    metadata: !TemplateMetadata
      metrics: [ROUGE]
"""
FEW_SHOT = """
reviews_and_t0:
  temperature: 2.0
  tasks:
    - {task: 'reviews_.*', exclude: '.*_score_eval', cap: 3000}
    - {task: super_glue_copa_exercise, cap: 200, scale: 0.5}
    - {mixture: t0_train_one_og_prompt, rate: 500}
    - {task: super_glue_rte_GPT_3_style_4shot, rate: 7}
  few_shot: {of: ['super_glue_rte_.*'], k: 4, budget: 1920, split: train, seed: 0}
"""
ROWS = [{"text": "It was fun.", "label": 1}, {"text": "So dull.", "label": 0}]
CB_ROW = {"premise": "It rains.", "hypothesis": "it is wet", "idx": 0, "label": 0}


def write(folder, templates, **splits):
    folder.mkdir(parents=True)
    (folder / "templates.yaml").write_text(templates)
    for split, rows in splits.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines)


def registered(prefix):
    import seqio

    return sorted(name for name in seqio.TaskRegistry.names() if name.startswith(prefix))


@pytest.fixture
def reviews(tmp_path):
    write(tmp_path / "mine" / "reviews", REVIEWS, train=ROWS, validation=ROWS[:1])
    return tmp_path / "mine"


def test_own_folder_becomes_plain_and_rank_evaluation_tasks(imported, reviews):
    import seqio

    with imported(reviews):
        assert registered("reviews") == [
            "reviews_good_or_bad_",
            "reviews_good_or_bad__score_eval",
            "reviews_write_one",
        ]
        task = seqio.TaskRegistry.get("reviews_good_or_bad_")
        assert sorted(task.splits) == ["train", "validation"]
        assert task.num_input_examples("train") == 2
        assert [metric.__name__ for metric in task.metric_fns] == ["accuracy"]
        assert list(task.source.records("train")) == [
            {
                "inputs": "It was fun. Good or bad?",
                "targets": "good",
                "answer_choices": ["bad", "good"],
            },
            {
                "inputs": "So dull. Good or bad?",
                "targets": "bad",
                "answer_choices": ["bad", "good"],
            },
        ]
        assert len(registered("")) == 971 + 3


def test_own_mixtures_with_mixing_rates(imported, reviews):
    import seqio

    (reviews / "mixtures.yaml").write_text(
        "by_size:\n  tasks: ['reviews_.*one', sciq_Multiple_Choice, reviews_write_one]\n"
        "by_number:\n  tasks: ['reviews_.*']\n  rate: 0.5\n"
    )
    with imported(reviews):
        sized = seqio.MixtureRegistry.get("by_size")
        assert {task.name: sized.get_rate(task) for task in sized.tasks} == {
            "reviews_write_one": 2,
            "sciq_Multiple_Choice": 11_679,
        }
        numbered = seqio.MixtureRegistry.get("by_number")
        assert {task.name: numbered.get_rate(task) for task in numbered.tasks} == dict.fromkeys(
            registered("reviews"), 0.5
        )


def test_own_prompts_over_a_dataset_of_t0(imported, tmp_path):
    import seqio

    write(tmp_path / "prompts" / "anything", CB)
    (tmp_path / "data" / "super_glue" / "cb").mkdir(parents=True)
    data = tmp_path / "data" / "super_glue" / "cb" / "validation.jsonl"
    data.write_text(json.dumps(CB_ROW) + "\n")
    with imported(tmp_path / "prompts", tmp_path / "data"):
        task = seqio.TaskRegistry.get("super_glue_cb_my_own_score_eval")
        assert list(task.splits) == ["validation"]
        (record,) = task.source.records("validation")
        assert record["inputs"] == "It rains. So it is wet?"
        assert "super_glue_cb_can_we_infer" in registered("super_glue_cb")
        # The table of T5 is for class ids: an open-ended prompt has its own metrics.
        closed = seqio.TaskRegistry.get("super_glue_cb_my_own")
        assert [metric.__name__ for metric in closed.metric_fns][-1] == "accuracy"
        opened = seqio.TaskRegistry.get("super_glue_cb_my_open_one")
        assert [metric.__name__ for metric in opened.metric_fns] == ["rouge"]


def test_own_prompts_over_absent_dataset_count_recorded_rows(imported, tmp_path):
    import seqio

    write(tmp_path / "prompts" / "anything", CB)
    with imported(tmp_path / "prompts"):
        task = seqio.TaskRegistry.get("super_glue_cb_my_own")
        assert task.num_input_examples("validation") == 56
        with pytest.raises(UserError, match="no rows for the dataset 'super_glue', subset 'cb'"):
            task.get_dataset(None, "validation", use_cached=False)


def mistake(imported, *folders):
    """Returns the text of the UserError that the import raises, which must register nothing."""
    import seqio

    before = set(seqio.TaskRegistry.names()), set(seqio.MixtureRegistry.names())
    with pytest.raises(UserError) as raised, imported(*folders):
        pass
    assert (set(seqio.TaskRegistry.names()), set(seqio.MixtureRegistry.names())) == before
    return str(raised.value)


def test_own_task_with_name_of_the_catalogue_is_refused(imported, tmp_path):
    write(tmp_path / "mine" / "cb", CB.replace("my own", "can we infer"))
    text = mistake(imported, tmp_path / "mine")
    assert f"{tmp_path}/mine/cb/templates.yaml:5" in text
    assert "'super_glue_cb_can_we_infer'" in text
    assert "rename the template" in text


def test_own_tasks_with_the_same_spelling_are_refused(imported, tmp_path):
    write(tmp_path / "mine" / "reviews", REVIEWS.replace("write one", "good or bad!"), train=ROWS)
    assert "'reviews_good_or_bad_'" in mistake(imported, tmp_path / "mine")


def test_own_tasks_failed_import_registers_nothing(imported, reviews):
    # Within one session: what was half-registered would be called a clash once it is mended.
    import importlib

    import seqio

    with imported():
        for registry in (seqio.TaskRegistry, seqio.MixtureRegistry):
            registry._REGISTRY.clear()
        module = importlib.import_module("seqio_tasks")
        mixtures = reviews / "mixtures.yaml"
        mixtures.write_text("m:\n  tasks: [no_such]\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("T0_DATA_DIR", str(reviews))
            with pytest.raises(UserError):
                importlib.reload(module)
            assert not seqio.TaskRegistry.names()
            mixtures.write_text("m:\n  tasks: ['reviews_.*']\n")
            importlib.reload(module)
            assert len(seqio.TaskRegistry.names()) == 974


def test_mixture_defines_few_shot_tasks(imported, reviews):
    (reviews / "mixtures.yaml").write_text(FEW_SHOT)
    with imported(reviews):
        import seqio

        names = registered("super_glue_rte_GPT_3_style")
        assert names == [
            f"super_glue_rte_GPT_3_style{suffix}"
            for suffix in ("", "_4shot", "_4shot_score_eval", "_score_eval")
        ]
        rates = seqio.MixtureRegistry.get("reviews_and_t0")
        few_shot = seqio.TaskRegistry.get("super_glue_rte_GPT_3_style_4shot")
        assert rates.get_rate(few_shot) == 7**0.5
        settings = few_shot.source.few_shot.few_shot
        assert (settings.k, settings.budget, settings.length) == (4, 1920, 2048)


@pytest.mark.parametrize(
    ("mixtures", "wanted"),
    [
        (
            "m: {tasks: [reviews_write_one], few_shot: {of: [reviewss_.*], k: 2}}\n",
            "unknown task 'reviewss_.*'",
        ),
        (
            "m: {tasks: [reviews_write_one], few_shot: {of: [story_cloze_2016_.*], k: 2}}\n",
            "has no split 'train' to draw exemplars from",
        ),
        (
            "m: {tasks: [reviews_write_one], few_shot: {of: [reviews_.*], k: 2}}\n"
            "n: {tasks: [reviews_write_one], few_shot: {of: [reviews_.*], k: 2, seed: 1}}\n",
            "a task 'reviews_good_or_bad__2shot' exists already, with other settings",
        ),
        ("m:\n  tasks: [super_glue_cb_can_we_inferr]\n", "Did you mean 'super_glue_cb_can_we_inf"),
        ("m:\n  tasks: ['nothing_.*']\n", "unknown task 'nothing_.*'"),
        ("t0_train:\n  tasks: ['reviews_.*']\n", "task or mixture 't0_train' exists already"),
        (
            "sciq_Multiple_Choice:\n  tasks: ['reviews_.*']\n",
            "'sciq_Multiple_Choice' exists already",
        ),
    ],
    ids=[
        *("few-shot misspelled", "few-shot without train rows", "few-shot name twice"),
        *("misspelled", "matches nothing", "name of a mixture", "name of a task"),
    ],
)
def test_own_mixtures_with_mistakes_are_refused(imported, reviews, mixtures, wanted):
    (reviews / "mixtures.yaml").write_text(mixtures)
    text = mistake(imported, reviews)
    assert wanted in text
    assert str(reviews / "mixtures.yaml") in text


def test_own_task_with_unusable_metric_is_refused(imported, tmp_path):
    write(tmp_path / "mine" / "reviews", REVIEWS.replace("[BLEU, ROUGE]", "[AUC]"), train=ROWS)
    text = mistake(imported, tmp_path / "mine")
    assert f"{tmp_path}/mine/reviews/templates.yaml:11: template 'write one'" in text
    assert "'AUC'" in text
    assert "BLEU" in text


def test_own_template_with_missing_column_is_refused(imported, tmp_path):
    import seqio

    write(tmp_path / "mine" / "reviews", REVIEWS, train=[{"txt": "Fun.", "label": 1}])
    with imported(tmp_path / "mine"):
        task = seqio.TaskRegistry.get("reviews_good_or_bad_")
        with pytest.raises(UserError) as raised:
            task.get_dataset(None, "train", use_cached=False)
    text = str(raised.value)
    for part in ("'good or bad?'", "'text'", f"{tmp_path}/mine/reviews/train.jsonl", "txt, label"):
        assert part in text


def test_own_split_in_an_empty_file_has_no_rows(imported, reviews):
    import seqio

    (reviews / "reviews" / "validation.jsonl").write_text("")
    with imported(reviews):
        source = seqio.TaskRegistry.get("reviews_good_or_bad_").source
        with pytest.raises(UserError, match=r"validation\.jsonl has no rows\. Write rows into it"):
            source.open("validation")

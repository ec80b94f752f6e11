"""Metrics: T5's for prompts, SQuAD's official ones, and `rouge-score`'s own values over groups."""

import gzip
import json

import numpy as np
import pytest
from rouge_score import rouge_scorer
from t5.evaluation import metrics as t5
from t5.evaluation import metrics as t5_metrics

from t0.errors import UserError
from t0.prompts import Template
from t0.prompts.templates import METRIC_NAMES
from t0.tasks import PromptedTask, task_definitions
from t0.tasks.instruction_tasks import postprocess
from t0.tasks.metrics import (
    METRICS,
    Expected,
    instruction_metrics,
    normalised_answer,
    normalised_output,
    plain_metrics,
    reads_text,
    squad_metrics,
    squad_scores,
)


def template(metrics=(), choices=None, name="x"):
    return Template(
        name=name,
        jinja="{{text}} ||| {{label}}",
        answer_choices=choices,
        reference="",
        original_task=True,
        choices_in_prompt=False,
        metrics=tuple(metrics),
        id="x",
        where="some.yaml:3",
    )


def names(metrics):
    return [metric.__name__ for metric in metrics]


@pytest.mark.parametrize(
    ("dataset", "subset", "made", "wanted"),
    [
        ("imdb", None, template(["Accuracy"]), ["accuracy"]),
        ("imdb", None, template(["BLEU", "ROUGE"]), ["bleu", "rouge"]),
        ("imdb", None, template(), []),
        # SeqIO's evaluator refuses two metrics that report the same key.
        ("ai2_arc", "ARC-Easy", template(["Accuracy", "Other"]), ["accuracy"]),
        ("glue", "mrpc", template(choices="a ||| b"), ["f1_score_with_invalid", "accuracy"]),
        ("glue", "mrpc", template(["BLEU", "ROUGE"]), ["bleu", "rouge"]),
        ("glue", "my_own", template(["ROUGE"], "a ||| b"), ["rouge"]),
        ("super_glue", "rte", template(["Other"], "a ||| b"), ["accuracy"]),
        ("super_glue", "multirc", template([], "a ||| b"), ["accuracy"]),
        ("super_glue", "wsc.fixed", template(), ["accuracy"]),
        ("super_glue", "record", template(), ["squad"]),
        ("super_glue", "axg", template([], "a ||| b"), []),
        ("my_own", None, template(["Squad", "Trivia QA"]), ["squad", "trivia_qa"]),
    ],
)
def test_metrics_chosen_for_dataset_and_template(dataset, subset, made, wanted):
    assert names(plain_metrics(dataset, subset, made)) == wanted


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("choices", [None, "2 ||| 1"], ids=["open", "fixed choices"])
def test_metrics_read_the_postprocessed_text(name, choices):
    task = PromptedTask("mine", None, template([name], choices), {"train": "train"}, {"train": 2})
    parts = task_definitions(task)["mine_x"]
    post = parts["postprocess_fn"]
    targets = [post(text, example={}, is_target=True) for text in (" 1", "2 ", "1", "2")]
    right = [post(text, example={}) for text in ("1", "2", "1 ", "2")]
    wrong = [post(text, example={}) for text in ("2", "none of it", "", "1")]
    (metric,) = parts["metric_fns"]
    (best,) = metric(targets, right).values() if name in ONE_VALUE else [None]
    worst = metric(targets, wrong)
    if name in ("Accuracy", "Sequence Accuracy", "Other"):
        assert best in (100, 1.0)
        assert set(worst.values()) == {0}
    if name in ("Squad", "Trivia QA"):
        assert metric(targets, right) == {"em": 100, "f1": 100}
        assert worst == {"em": 0, "f1": 0}
    if "Correlation" in name:
        assert best == pytest.approx(100)


ONE_VALUE = {
    *("Accuracy", "Sequence Accuracy", "Other", "Pearson Correlation", "Spearman Correlation")
}


def test_squad_metric_takes_target_as_one_answer():
    squad = METRICS["Squad"]
    assert squad(["a dog"], ["a dog"]) == t5.squad([["a dog"]], ["a dog"]) == {"em": 100, "f1": 100}
    # What the original does: each letter of the target is an answer.
    assert t5.squad(["xyz"], ["x"])["em"] == 100
    assert squad(["xyz"], ["x"])["em"] == 0


def test_correlation_metric_reads_invalid_number_as_minus_one():
    spearman = METRICS["Spearman Correlation"]
    assert spearman(["1", "2", "3"], ["5", "6", "7.5"])["spearman_corrcoef"] == pytest.approx(100)
    same = spearman(["1", "2", "3"], ["what", "6", "7"])["spearman_corrcoef"]
    assert same == pytest.approx(100)


def test_postprocessor_gives_class_ids_of_fixed_choices():
    def postprocessor(metrics):
        task = PromptedTask("mine", None, template(metrics, "no ||| yes"), {}, {})
        return task_definitions(task)["mine_x"]["postprocess_fn"]

    assert [postprocessor(["Accuracy"])(text) for text in ("no", " yes\n", "maybe")] == [0, 1, -1]
    assert postprocessor(["Accuracy", "ROUGE"])(" yes\n") == "yes"
    assert reads_text([METRICS["ROUGE"]])
    assert not reads_text([METRICS["Accuracy"]])


def test_postprocessor_keeps_choices_of_the_row_as_text():
    task = PromptedTask("mine", None, template(["Accuracy"], "{{a}} ||| {{b}}"), {}, {})
    assert task_definitions(task)["mine_x"]["postprocess_fn"](" yes ") == "yes"


def test_rank_metric_with_variable_or_fixed_choices():
    def score(choices):
        task = PromptedTask("mine", None, template(["Accuracy"], choices), {}, {})
        (metric,) = task_definitions(task)["mine_x_score_eval"]["metric_fns"]
        # (row, choice), correct, weight, tokens: the second choice, the first, the first.
        targets = [([i // 2, i % 2], i in (1, 2, 4), 1.0, 3) for i in range(6)]
        return metric(targets, [-2.0, -1.0, -1.0, -2.0, -2.0, -1.0])

    assert score("{{a}} ||| {{b}}") == {"accuracy": pytest.approx(200 / 3)}
    # With a fixed number of classes T5 reports more.
    fixed = score("no ||| yes")
    assert fixed["accuracy"] == pytest.approx(200 / 3)
    assert "auc-roc" in fixed


@pytest.mark.parametrize("name", ["AUC", "Mean Reciprocal Rank", "accuracy"])
def test_unknown_metric_error_names_the_prompt(name):
    with pytest.raises(UserError) as raised:
        plain_metrics("mine", None, template(["BLEU", name], name="my prompt"))
    text = str(raised.value)
    for part in ("some.yaml:3", "'my prompt'", f"'{name}'", "Accuracy", "Squad"):
        assert part in text


ANSWERS = [["Denver Broncos", "the Broncos"], ["24–10"], ["a cat", "cats"], ["The"]]
ANSWERS_GIVEN = ["denver broncos!", "24-10", "An  old cat", ""]


def test_squad_metric_without_unanswerable_questions():
    found = squad_metrics(ANSWERS, ANSWERS_GIVEN)
    # The dash of the second answer is no ASCII punctuation; "An" is an article; the fourth answer
    # is nothing but an article: SQuAD 1.1 has a match there, and an F1 of 0.
    assert found == {"em": pytest.approx(50), "f1": pytest.approx(100 * (1 + 0 + 2 / 3 + 0) / 4)}
    assert found == pytest.approx(t5_metrics.squad(ANSWERS, ANSWERS_GIVEN))


def test_squad_metric_with_unanswerable_questions():
    found = squad_metrics([*ANSWERS, [], []], [*ANSWERS_GIVEN, "", "Oslo"])
    # By SQuAD 2.0 an answer that is nothing but an article counts as none, and none was given.
    f1 = 1 + 0 + 2 / 3 + 1
    assert found == {
        "em": pytest.approx(50),
        "f1": pytest.approx(100 * (f1 + 1) / 6),
        "em_answerable": pytest.approx(50),
        "f1_answerable": pytest.approx(100 * f1 / 4),
        "em_unanswerable": pytest.approx(50),
        "f1_unanswerable": pytest.approx(50),
    }


def test_squad_metric_of_one_answer():
    assert squad_scores(["Oslo"], "oslo", may_be_none=False) == {"em": 1.0, "f1": 1.0}
    assert squad_scores(["Oslo"], "", may_be_none=True) == {"em": 0.0, "f1": 0.0}
    assert squad_scores([], "", may_be_none=True) == {"em": 1.0, "f1": 1.0}
    assert normalised_answer("The  Broncos' a-quarterback, an") == "broncos aquarterback"


def test_squad_metric_equals_official_values_on_predictions(shared_data):
    folder = shared_data / "data_recipes" / "qa" / "squad"
    if not folder.is_dir():
        pytest.skip("needs predictions over SQuAD, not part of this project")
    official = json.loads((folder / "eval_metrics.json").read_text())
    with gzip.open(folder / "eval_predictions.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == official["total"] == 10_570
    answers = [row["answers"]["text"] for row in rows]
    found = squad_metrics(answers, [row["prediction_text"] for row in rows])
    assert found == {"em": official["eval_exact_match"], "f1": official["eval_f1"]}


TARGETS = [
    Expected(("the cats were sitting on the mat",), "task1", "Data to Text"),
    Expected(("Oslo", "the city of Oslo, Norway"), "task1", "Data to Text"),
    Expected(("1", "one"), "task2", "Textual Entailment"),
    Expected(("rain",), "task3", "Data to Text"),
]
PREDICTIONS = ["A cat sits on a mat!", "city of oslo", " ONE. ", ""]


def test_rouge_metric_equals_rouge_score_over_groups():
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)
    best = [
        max(scorer.score(reference, prediction)["rougeL"].fmeasure for reference in t.references)
        for t, prediction in zip(TARGETS, PREDICTIONS, strict=True)
    ]
    assert 0 < best[0] < 1
    assert 0 < best[1] < 1
    found = instruction_metrics(TARGETS, PREDICTIONS)
    assert found["rougeL"] == pytest.approx(100 * np.mean(best), abs=1e-12)
    assert found["rougeL_for_data_to_text"] == pytest.approx(100 * np.mean([*best[:2], best[3]]))
    assert found["rougeL_for_task1"] == pytest.approx(100 * np.mean(best[:2]))
    assert found["rougeL_for_task3"] == 0


def test_rouge_metric_by_hand():
    # Common in order, stemmed: cat (cats), on, mat, of 7 words wanted and 6 given; "sits" and
    # "sitting" have the stem "sit".
    found = instruction_metrics(TARGETS[:1], PREDICTIONS[:1])
    assert found["rougeL"] == pytest.approx(100 * 2 * (4 / 7) * (4 / 6) / (4 / 7 + 4 / 6))


@pytest.mark.parametrize(
    "text",
    [
        "हाँ, यह सही है", "да, это верно", "是的，没错。", "はい、そうです", "ใช่ ถูกต้อง", "네",
        "نعم، هذا صحيح", "कक्षा 7 में school है", "Ünö", "ναι", "😀",
    ],
)  # fmt: skip
def test_rouge_metric_of_equal_texts_in_any_script(text):
    metrics = METRICS["ROUGE"]([text], [text])
    assert instruction_metrics([Expected((text,), "t", "c")], [text])["rougeL"] == 100
    assert metrics["rouge1"] == metrics["rougeLsum"] == pytest.approx(100)
    assert instruction_metrics([Expected((text,), "t", "c")], ["no"])["rougeL"] == 0


def test_rouge_metric_counts_characters_without_spaces():
    # Two of the three characters, in order: precision 1, recall 2/3. Three of four Hindi words.
    for target, prediction, score in (("东京都", "东京", 0.8), ("यह घर बड़ा है", "यह घर है", 6 / 7)):
        found = instruction_metrics([Expected((target,), "t", "c")], [prediction])
        assert found["rougeL"] == pytest.approx(100 * score)


def test_rouge_metric_of_english_equals_rouge_score():
    target, prediction = "The café’s menu costs 5 € (β-test)! 😀\nIt opened.", "A cafe menu, 5 β"
    scores = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True).score(target, prediction)
    found = instruction_metrics([Expected((target,), "t", "c")], [prediction])
    assert found["rougeL"] == pytest.approx(100 * scores["rougeL"].fmeasure)
    assert METRICS["ROUGE"]([target], [prediction]) == t5.rouge([target], [prediction])


def test_exact_match_ignores_case_punctuation_and_spaces():
    assert normalised_output("  The  Cat-fish, \n swam. ") == "the catfish swam"
    targets = [Expected((reference,), "t", "C") for reference in ("the cat", "the cat", "A; b")]
    found = instruction_metrics(targets, ["The cat!", "cat", "a  b"])
    assert found["exact_match"] == pytest.approx(200 / 3)


def test_instruction_metrics_groups_and_their_order():
    names = [
        name for name in instruction_metrics(TARGETS, PREDICTIONS) if name.startswith("exact_match")
    ]
    assert names == [
        "exact_match",
        "exact_match_for_data_to_text",
        "exact_match_for_textual_entailment",
        "exact_match_for_task1",
        "exact_match_for_task2",
        "exact_match_for_task3",
    ]


def test_postprocess_of_instruction_targets():
    example = {"references": np.array([b"a", "ü".encode()]), "task": b"task1", "category": b"Misc."}
    assert postprocess(" a\n", example=example) == "a"
    target = postprocess("a", example=example, is_target=True)
    assert target == Expected(("a", "ü"), "task1", "Misc.")


def test_metric_names_of_templates_are_those_with_a_function():
    assert tuple(METRICS) == METRIC_NAMES

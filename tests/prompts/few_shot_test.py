"""Few-shot prompts: the number of exemplars that fit, the joined text, and bad settings."""

import pytest

from t0.errors import UserError
from t0.prompts import Example
from t0.prompts.few_shot import (
    Exemplar,
    FewShot,
    TextMeasure,
    count_fitting,
    count_within_budget,
    join_exemplars,
    read_few_shot,
)


def words(text):
    return len(text.split())


def measure(length=1000):
    return TextMeasure(words, lambda inputs, answers: words(inputs) <= length)


# From FLAN's own tests (flan/preprocessors_test.py).
FLAN = [(15, 3), (13, 2), (10, 2), (8, 1), (1, 0)]


@pytest.mark.parametrize(("limit", "kept"), FLAN)
def test_budget_keeps_as_many_exemplars_as_flan(limit, kept):
    assert count_within_budget([2, 3, 4], input_size=5, budget=limit) == kept


@pytest.mark.parametrize(("limit", "kept"), FLAN)
def test_budget_of_texts_does_not_count_separators(limit, kept):
    exemplars = [Exemplar(0, "a", "b"), Exemplar(1, "a a", "b"), Exemplar(2, "a a", "b b")]
    few_shot = FewShot(k=3, budget=limit, x_y_delimiter=" = ", example_separator=" # # # ")
    example = Example("one two three four five", "b", None)
    assert count_fitting(few_shot, exemplars, example, measure()) == kept


def test_length_of_the_joined_text_counts_separators():
    exemplars = [Exemplar(0, "a", "b"), Exemplar(1, "c", "d")]
    few_shot = FewShot(k=2, x_y_delimiter=" = ", example_separator=" # ")
    example = Example("e", "f", None)
    # "a = b # c = d # e = " has 10 words, and "a = b # e = " has 6.
    counts = [count_fitting(few_shot, exemplars, example, measure(n)) for n in (10, 9, 6, 5, 1)]
    assert counts == [2, 1, 1, 0, 0]


def test_joined_text_has_flans_form():
    exemplars = [Exemplar(0, "a", "b"), Exemplar(1, "c", "d")]
    assert join_exemplars(FewShot(k=2), exemplars, "e") == "a\n\nb\n\n\nc\n\nd\n\n\ne\n\n"
    visible = FewShot(
        k=2,
        inputs_prefix="Q: ",
        targets_prefix="A: ",
        x_y_delimiter=" / ",
        example_separator=" ## ",
        final_suffix="!",
    )
    joined = join_exemplars(visible, exemplars, "e")
    assert joined == "Q: a / A: b ## Q: c / A: d ## Q: e / A: !"


def test_without_exemplars_the_input_is_unchanged():
    assert join_exemplars(FewShot(k=2, inputs_prefix="Q: "), [], "e") == "e"


def test_facts_are_k_the_seed_and_changed_options():
    assert FewShot(k=4).facts() == {"num_fewshot": 4, "fewshot_seed": 0}
    assert FewShot(k=4, seed=7, budget=1920).facts() == {
        "num_fewshot": 4,
        "fewshot_seed": 7,
        "fewshot_options": {"budget": 1920},
    }


@pytest.mark.parametrize(
    ("k", "options", "message"),
    [
        (2, {"sed": 1}, "unknown option of mine 'sed'. Did you mean 'seed' or 'store'?"),
        (2, {"k": 3}, "unknown option of mine 'k'"),
        (2, {"seed": -1}, "mine.seed is -1; expected a whole number from 0"),
        (2, {"seed": 1.5}, "mine.seed is 1.5"),
        (2, {"budget": 0}, "mine.budget is 0"),
        (2, {"budget": float("nan")}, "mine.budget is nan; expected a finite number"),
        (2, {"balance": "label"}, "mine.balance is 'label'; expected 'labels'"),
        (2, {"exclude_self": "no"}, "mine.exclude_self is 'no'; expected True or False"),
        (0, {}, "mine.k is 0; expected a whole number from 1"),
    ],
)
def test_bad_settings_are_refused(k, options, message):
    with pytest.raises(UserError) as refused:
        read_few_shot(k, options, "mine")
    assert message in str(refused.value)

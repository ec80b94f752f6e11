"""Missing values and blank options in a user's templates, and in T0's own."""

import dataclasses
import math

import pytest

from t0.prompts import NO_LABEL, CompiledTemplate, RowReport, Template
from t0.prompts.missing_values import Options

ROW = {
    "x": None,
    "n": math.nan,
    "y": 3,
    "zero": 0,
    "no": False,
    "items": [1, None, "b"],
    "rows": [{"a": 1}, {"a": None}],
    "nothing": [],
    "word": "None",
    "a": "red",
    "b": " ",
    "c": "blue",
}


def compiled(jinja, choices=None, *, published=False):
    template = Template("t", jinja, choices, "", True, True, (), "t", published=published)
    return CompiledTemplate(template)


@pytest.mark.parametrize(
    ("printed", "own", "t0"),
    [
        ("{{x}}", "", "None"),
        ("{{n}}", "", "nan"),
        ("{{zero}} {{no}} {{y}}", "0 False 3", "0 False 3"),
        ("{{x ~ '|' ~ y}}", "|3", "None|3"),
        ("{{x | lower}}{{x | string | upper}}", "", "noneNONE"),
        ("{{items | join(', ')}}", "1, , b", "1, None, b"),
        ("{{rows | join(',', 'a')}}", "1,", "1,None"),
        ("{{rows | map(attribute='a') | map('string') | list | last}}", "", "None"),
        ("{{'{} {:.2f}'.format(x, y)}}", " 3.00", "None 3.00"),
        ("{{'%s, %s' | format(x, y)}}", ", 3", "None, 3"),
        ("{{x if y else 1}}", "", "None"),
        ("{% for i in items %}[{{i}}]{% endfor %}", "[1][][b]", "[1][None][b]"),
        ("{% macro m(v) %}<{{v}}>{% endmacro %}{{m(x)}}", "<>", "<None>"),
        ("{{x or 'unknown'}}", "unknown", "unknown"),
        ("{% if x is none %}a{% endif %}{% if x == y %}b{% endif %}", "a", "a"),
        ("{% if n is none %}a{% endif %}.", "a.", "."),
        ("{{word}}", "None", "None"),
    ],
)
def test_missing_values_print_nothing_except_in_t0_templates(printed, own, t0):
    for published, expected in ((False, own), (True, t0)):
        example = compiled(f"Q:{printed} ||| t", published=published).example(ROW)
        assert example.inputs == f"Q:{expected}".strip()


def test_missing_target_is_no_label_and_missing_values_are_counted():
    example = compiled("{{y}} {{x}} {{n}} ||| {{x}}").example(ROW)
    assert (example.targets, example.missing, example.has_target) == (NO_LABEL, 3, False)
    kept = compiled("{{y}} {{x}} ||| {{x}}", published=True).example(ROW)
    assert (kept.targets, kept.missing, kept.has_target) == ("None", 0, True)


@pytest.mark.parametrize(
    ("label", "target", "labelled"),
    [(0, "red", True), (1, NO_LABEL, False), (2, "blue", True), (None, NO_LABEL, False)],
)
def test_blank_options_are_left_out_and_indices_stay(label, target, labelled):
    prompt = compiled(
        "{{answer_choices | join(', ')}}; {{answer_choices[2]}} ||| {{answer_choices[label]}}",
        "{{a}} ||| {{b}} ||| {{c}} ||| {{x}}",
    )
    example = prompt.example(ROW | {"label": label})
    assert example.inputs == "red, blue; blue"
    assert (example.choices, example.blank) == (["red", "blue"], (1, 3))
    assert (example.targets, example.has_target) == (target, labelled)
    assert prompt.choices(ROW) == ["red", "blue"]


def test_blank_options_of_t0_templates_are_kept_and_counted():
    prompt = compiled("q ||| {{answer_choices[0]}}", "{{a}} ||| {{b}}", published=True)
    example = prompt.example(ROW)
    assert (example.choices, example.blank) == (["red", ""], (1,))
    report = RowReport(hide_labels=True, ranked=True)
    assert report.target(example, False, 0) == "red"
    assert report.counts == {"rows": 1, "with blank options (kept, as in T0)": 1}


def test_row_with_only_blank_options_has_no_target():
    example = compiled("q ||| t", "{{b}} ||| {{x}}").example(ROW)
    assert (example.choices, example.has_target) == ([], False)


def test_fixed_blank_options_are_left_out():
    prompt = compiled("q ||| {{answer_choices[2]}}", "no ||| ||| yes |||")
    assert prompt.fixed_choices == ["no", "yes"]
    assert prompt.example({}).targets == "yes"
    assert compiled("q ||| t", "").fixed_choices == [""]  # open-ended


def test_options_iterate_without_blanks():
    options = Options(["a", "", "c"])
    assert ([*options], [*reversed(options)], options[2]) == (["a", "c"], ["c", "a"], "c")


@pytest.mark.parametrize("kind", ["choice", "random"])
def test_random_option_is_never_blank(kind):
    prompt = compiled(f"{{{{answer_choices | {kind}}}}} ||| t", "{{a}} ||| {{b}} ||| {{x}}")
    assert {prompt.example(ROW, index).inputs for index in range(20)} == {"red"}


def test_rows_without_target_are_dropped_only_if_requested():
    example = compiled("{{y}} {{x}} ||| {{x}}").example(ROW)
    own = RowReport(hide_labels=True, drops_unlabelled=True)
    assert own.target(example, True, 5) is None
    missing = "with missing values (nothing is printed for them)"
    assert own.counts == {"rows": 1, missing: 1, "without a target (left out)": 1}
    assert own.first["without a target (left out)"] == 5
    t0 = RowReport(hide_labels=False)
    assert t0.target(example, False, 5) == NO_LABEL


@pytest.mark.parametrize(
    ("printed", "own", "t0"),
    [
        ("{{x}}", False, True),
        ("{{items | join}}", False, True),
        ("{{word}}", True, True),
        ("{{nothing}}", True, True),
        ("{{y}} None", False, False),
    ],
)
def test_printed_words_for_missing_values_are_found(printed, own, t0):
    prompt = compiled(f"Q: {printed} ||| t")
    assert prompt.prints_words(ROW) is own
    published = CompiledTemplate(dataclasses.replace(prompt.template, published=True))
    assert published.prints_words(ROW) is t0
    assert not compiled("{{y}} ||| {{answer_choices[0]}}", "None ||| One").prints_words(ROW)


def test_is_changed_by_missing_needs_a_printed_missing_value():
    changed = {
        "{{x}} q ||| t": True,
        "{{y}} ||| t": False,
        "{% if x %}{{x}}{% endif %} q ||| t": False,
        "{{y}} ||| {{b}}": True,
        "{{b}} q ||| t": False,
    }
    assert {j: compiled(j).is_changed_by_missing(ROW) for j in changed} == changed

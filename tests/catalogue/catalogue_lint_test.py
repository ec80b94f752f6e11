"""The lint: what is odd about a prompt is counted, and the odd ones are refused."""

import json

import pytest

from t0.catalogue import lint
from t0.catalogue.row_preview import T0_LENGTHS
from t0.catalogue.sentence_pieces import Tokens
from t0.prompts import Template
from t0.tasks import PromptedSource
from t0.testing import train_vocabulary

LONG_INPUTS, LONG_TARGETS = lint.checks_of_lengths(T0_LENGTHS)


def source(tmp_path, monkeypatch, jinja, choices=None, rows=20, labels=(0, 1), dataset="lintable"):
    folder = tmp_path / dataset / "default"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.jsonl").open("w") as file:
        for i in range(rows):
            row = {"text": f"row {i}", "label": labels[i % len(labels)], "number": i}
            file.write(json.dumps(row) + "\n")
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
    template = Template("t", jinja, choices, "", True, False, (), "id", "templates.yaml:1")
    return PromptedSource(
        dataset=dataset,
        subset=None,
        template=template,
        split_mapping={"train": "train"},
        num_rows={"train": rows},
        seed_name="t",
    )


@pytest.mark.parametrize(
    ("jinja", "choices", "counts"),
    [
        ("{{text}} ||| {{answer_choices[label]}}", "No ||| Yes", {}),
        ("{% if label %}{{text}} ||| x{% endif %}", None, {lint.NOTHING: 10}),
        ("{{text}} ||| {% if label %}x{% endif %}", None, {lint.EMPTY: 10}),
        ("{{text}} ||| {{['no', 'Yes'][label]}}", "No ||| Yes", {lint.NONE_CORRECT: 10}),
        (
            "{{text}} ||| {{answer_choices[label]}}",
            "Yes ||| Yes",
            {lint.DUPLICATES: 20, lint.SEVERAL_CORRECT: 20},
        ),
        ("{{text}} ||| {{answer_choices[label]}}", "No ||| Yes ||| No", {}),
    ],
)
def test_lint_counts_faults_of_prompts(tmp_path, monkeypatch, jinja, choices, counts):
    report = lint.lint(source(tmp_path, monkeypatch, jinja, choices), "train", rows=100)
    if choices == "No ||| Yes ||| No":
        counts = {lint.DUPLICATES: 20, lint.SEVERAL_CORRECT: 10}
    assert report.counts == counts
    assert report.rows == 20
    wrong = lint.faults_of(report, max_share=0.1)
    assert wrong.keys() == counts.keys()
    assert lint.faults_of(report, max_share=1.0) == {}
    assert lint.faults_of(report, max_share=0.1, excused=dict.fromkeys(counts, "meant")) == {}
    for check in counts:
        assert f"of 20 rows, the first is row {report.first[check]}" in wrong[check]


def test_lint_hidden_labels_are_not_a_fault_of_the_prompt(tmp_path, monkeypatch):
    prompt = source(
        tmp_path, monkeypatch, "{{text}} ||| {{answer_choices[label]}}", "No ||| Yes", labels=(-1,)
    )
    report = lint.lint(prompt, "train", rows=100)
    assert report.counts == {lint.HIDDEN: 20}
    assert lint.faults_of(report, max_share=0.0) == {}


def test_lint_reports_template_that_fails_or_draws(tmp_path, monkeypatch):
    failing = source(tmp_path, monkeypatch, "{% set x = 1 // (3 - number) %}{{text}} ||| x")
    report = lint.lint(failing, "train", rows=100)
    assert "failed on row 3" in lint.faults_of(report, max_share=1.0)["fails"]
    drawing = source(tmp_path, monkeypatch, "{{['a', 'b']|choice}} {{text}} ||| x")
    assert lint.lint(drawing, "train", rows=5).draws
    assert not report.draws


def test_lint_lengths_include_eos_of_targets(tmp_path, monkeypatch):
    prompt = source(tmp_path, monkeypatch, "{{text}} ||| {{number}}", rows=3)
    sizes = {"row 0": 1024, "row 1": 1025, "row 2": 1, "0": 255, "1": 256, "2": 1}
    tokens = Sizes(sizes)
    report = lint.lint(prompt, "train", rows=9, tokens=tokens)
    assert report.counts == {LONG_INPUTS: 1, LONG_TARGETS: 1}
    assert report.first == {LONG_INPUTS: 1, LONG_TARGETS: 1}
    assert lint.faults_of(report, max_share=0.0) == {}
    sizes |= {"0": 256, "2": 300}
    report = lint.lint(prompt, "train", rows=9, tokens=tokens)
    assert lint.faults_of(report, max_share=1.0) == {
        LONG_TARGETS: "every target is cut at 256 tokens"
    }


def test_lint_truncation_is_a_fault_at_the_lengths_of_a_starter_folder(tmp_path, monkeypatch):
    prompt = source(tmp_path, monkeypatch, "{{text}} ||| {{number}}", rows=3)
    tokens = Sizes({"row 0": 49, "row 1": 48, "row 2": 1, "0": 7, "1": 7, "2": 7})
    lengths = {"inputs": 48, "targets": 8}
    report = lint.lint(prompt, "train", rows=9, tokens=tokens, lengths=lengths)
    assert report.counts == {"inputs over 48": 1}
    assert lint.faults_of(report, max_share=0.1, lengths=lengths) == {}
    faults = lint.faults_of(report, max_share=0.1, lengths=lengths, truncates=False)
    assert faults == {"inputs over 48": "1 of 3 rows, the first is row 0"}
    assert lint.faults_of(report, max_share=0.4, lengths=lengths, truncates=False) == {}


class Sizes:
    """A vocabulary of known tokens that gives each text as many as a table says."""

    def __init__(self, sizes):
        self.sizes = sizes

    def ids(self, text):
        return [9] * self.sizes[text]


@pytest.fixture
def ascii_tokens(tmp_path):
    """A vocabulary that has the letters of these words, and nothing else."""
    return Tokens(str(train_vocabulary(tmp_path / "v.model", ["row yes no 0123456789"] * 20)))


@pytest.mark.parametrize(
    ("choices", "counts", "fault"),
    [
        ("yes ||| no", {}, None),
        ("yes ☂ ||| no", {lint.UNKNOWN_TOKENS: 20}, None),
        ("☂ ||| ☀", {lint.UNKNOWN_TOKENS: 20, lint.ALL_EQUAL: 20}, lint.ALL_EQUAL),
        # Equal after normalisation, with no unknown token.
        ("no ||| ｎｏ", {lint.ALL_EQUAL: 20}, lint.ALL_EQUAL),
        # Two labels: the first is right in ten rows, and equals the third choice.
        ("no ||| yes ||| ｎｏ", {lint.RIGHT_EQUALS_WRONG: 10}, lint.RIGHT_EQUALS_WRONG),
    ],
)
def test_lint_choices_with_equal_tokens_in_the_vocabulary(
    tmp_path, monkeypatch, ascii_tokens, choices, counts, fault
):
    prompt = source(tmp_path, monkeypatch, "{{text}} ||| {{answer_choices[label]}}", choices)
    report = lint.lint(prompt, "train", rows=100, tokens=ascii_tokens)
    assert report.counts == counts
    assert [*lint.faults_of(report, max_share=0.1)] == [fault] * (fault is not None)
    if lint.UNKNOWN_TOKENS in counts:
        assert "'☂'" in report.notes[0]


def test_lint_one_example_with_all_choices_equal_is_a_fault(tmp_path, monkeypatch, ascii_tokens):
    choices = "{{'☂' if number == 3 else 'yes'}} ||| {{'☀' if number == 3 else 'no'}}"
    prompt = source(tmp_path, monkeypatch, "{{text}} ||| {{answer_choices[label]}}", choices)
    report = lint.lint(prompt, "train", rows=100, tokens=ascii_tokens)
    assert report.counts[lint.ALL_EQUAL] == 1
    assert lint.faults_of(report, max_share=0.1) == {
        lint.ALL_EQUAL: "1 of 20 rows, the first is row 3"
    }
    # The text '<NO LABEL>' of a row without a label is not the user's.
    empty = source(tmp_path, monkeypatch, "{{text}} ||| {% if label %}yes{% endif %}")
    assert lint.UNKNOWN_TOKENS not in lint.lint(empty, "train", rows=9, tokens=ascii_tokens).counts


def test_lint_counts_texts_that_promptsource_truncates(tmp_path, monkeypatch):
    jinja = "{{(text * (900 if number < 5 else 1))}} ||| yes"
    report = lint.lint(source(tmp_path, monkeypatch, jinja), "train", rows=100)
    assert report.counts == {lint.CUT: 5}
    assert lint.faults_of(report, max_share=0.0) == {}


@pytest.mark.parametrize(("rows", "total"), [(10, 1000), (7, 1000), (3, 20), (20, 20), (50, 20)])
def test_lint_sample_is_spread_over_the_split(tmp_path, monkeypatch, rows, total):
    opened = source(tmp_path, monkeypatch, "{{text}} ||| x", rows=total).open("train")
    numbers = [number for number, row in lint.sample(opened, rows) if row["number"] == number]
    assert len(numbers) == min(rows, total)
    assert numbers == sorted(set(numbers))
    if rows < total:
        assert numbers[-1] >= total * 0.6


def test_lint_printed_lists_are_a_fault_of_own_prompts(tmp_path, monkeypatch):
    folder = tmp_path / "lintable"
    folder.mkdir()
    rows = [{"text": f"row {i}", "words": ["a", "b"][: i % 3]} for i in range(20)]
    (folder / "train.json").write_text(json.dumps(rows))
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
    for jinja, count in {
        "{{words}} {{text}} ||| x": 20,
        "{{words|sort}} {{text}} ||| x": 20,
        "{% set parts = text.split() %}{{parts}} ||| x": 20,
        "{{words|join}} {{text}} ||| x": 0,
    }.items():
        prompt = source(tmp_path / "other", monkeypatch, jinja)
        monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
        report = lint.lint(prompt, "train", rows=100)
        assert report.counts == ({lint.NESTED: count} if count else {})
        assert (lint.NESTED in lint.faults_of(report, max_share=0.1)) is bool(count)


def test_lint_counts_missing_values_and_printed_words(tmp_path, monkeypatch):
    folder = tmp_path / "lintable"
    folder.mkdir()
    cells = ["", "2", "", "4"] * 5
    words = ["nan", "tea", "[]", "None"] * 5
    pairs = zip(cells, words, strict=True)
    lines = [f"q {i},{cell},{word}" for i, (cell, word) in enumerate(pairs)]
    (folder / "train.csv").write_text("\n".join(["text,number,word", *lines]))

    def counts(jinja, choices=None):
        prompt = source(tmp_path / "other", monkeypatch, jinja, choices)
        monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
        return lint.lint(prompt, "train", rows=100).counts

    missing = "with missing values (nothing is printed for them)"
    assert counts("{{text}} {{number}} ||| {{text}}") == {missing: 10}
    assert counts("{{text}} ||| {{number}}") == {lint.EMPTY: 10, missing: 10}
    assert counts("{{text}} {{word}} ||| x") == {lint.WORDS: 15}
    options = counts("{{text}} ||| {{answer_choices[0]}}", "{{text}} ||| {{number}}")
    assert options == {missing: 10, "with blank options (left out)": 10}


def test_lint_counts_rows_with_separator_text(tmp_path, monkeypatch):
    prompt = source(
        tmp_path, monkeypatch, "{{cells[0]}} {{text}} ||| {{answer_choices[0]}}", "a ||| b"
    )
    choosing = source(tmp_path, monkeypatch, "{{text}} ||| {{answer_choices[0]}}", "{{text}} ||| b")
    rows = [
        {"text": f"row {i}{' ||| x' * (i < 4)}", "cells": ["a ||| b", "c"][i % 2 :]}
        for i in range(20)
    ]
    (tmp_path / "lintable" / "default" / "train.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    for one, count in ((prompt, 10), (choosing, 4)):
        report = lint.lint(one, "train", rows=100)
        assert report.counts == {lint.SEPARATOR: count}
        assert lint.faults_of(report, max_share=0.0) == {}

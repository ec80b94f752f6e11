"""Our rendering beside promptsource 0.1.0's own, on real rows and on generated ones.

Two things of promptsource are replaced while the two are compared on real rows. Its compiler calls
are remembered, for it compiles anew in each call and the test would take a minute. And its `choice`
takes the context, so that it draws while rendering instead of while compiling, from the same seed.
"""

import functools
import gzip
import itertools
import json
import random
from pathlib import Path

import hypothesis
import jinja2
import pytest
import yaml
from hypothesis import strategies as st

from t0.prompts import CompiledTemplate, read_template_file, remove_hyphens, template_file_path
from tests.helpers.real_rows import ROWS

stock = pytest.importorskip("promptsource.templates")

WEATHER = Path(__file__).parent / "fixtures" / "weather" / "templates.yaml"
ROWS_OF_A_SPLIT = 20
DATASETS = sorted(path for path in ROWS.glob("*/*") if path.is_dir())

STOCK_WEATHER = yaml.load(WEATHER.read_text("utf-8"), Loader=yaml.FullLoader)["templates"].values()


class Stream:
    """Seeds promptsource's draws as ours are seeded."""

    def __init__(self, monkeypatch):
        @jinja2.pass_context
        def choice(context, items):
            return self.random.choice(items)

        monkeypatch.setitem(stock.env.filters, "choice", choice)

    def seed(self, seed_name, row_index):
        self.random = random.Random(f"{seed_name}\0{row_index}")


@pytest.fixture
def stream(monkeypatch):
    monkeypatch.setattr(stock.env, "from_string", functools.cache(stock.env.from_string))
    return Stream(monkeypatch)


def assert_same(template, prompt, row, row_index, stream):
    stream.seed(prompt.seed_name, row_index)
    parts = template.apply(row)
    assert prompt.apply(row, row_index) == parts
    stream.seed(prompt.seed_name, row_index)
    choices = template.get_answer_choices_list(row)
    assert prompt.choices(row, row_index) == choices
    example = prompt.example(row, row_index)
    if len(parts) == 2 and parts[0]:
        assert example.inputs == parts[0]
        assert example.targets == (parts[1] or "<NO LABEL>")
        assert example.choices == choices
    else:
        assert example is None


def subset_of(folder: Path) -> str | None:
    return None if folder.name == "default" else folder.name


def first_rows(path: Path) -> list[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [remove_hyphens(json.loads(x)) for x in itertools.islice(lines, ROWS_OF_A_SPLIT)]


@pytest.mark.parametrize("folder", DATASETS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_promptsource_parity_of_every_template_on_real_rows(folder, stream):
    dataset, subset = folder.parent.name, subset_of(folder)
    templates = stock.DatasetTemplates(dataset, subset)
    file = read_template_file(template_file_path(dataset, subset), published=True)
    assert [template.name for template in file.templates] == templates.all_template_names
    assert file.templates
    splits = sorted(folder.glob("*.jsonl.gz"))
    assert splits
    prompts = [CompiledTemplate(template, f"seed {template.name}") for template in file.templates]
    for path in splits:
        rows = first_rows(path)
        assert rows
        for prompt, (row_index, row) in itertools.product(prompts, enumerate(rows)):
            assert_same(templates[prompt.template.name], prompt, row, row_index, stream)
        for prompt in prompts:  # prompts.json of a model: within limits, with the same text
            metered = CompiledTemplate(prompt.template, prompt.seed_name, metered=True)
            assert metered.example(rows[0]) == prompt.example(rows[0])


def test_t0_templates_read_no_missing_columns():
    missing = {}
    for folder in DATASETS:
        dataset, subset = folder.parent.name, subset_of(folder)
        columns = {name for path in folder.glob("*.jsonl.gz") for name in first_rows(path)[0]}
        for template in read_template_file(
            template_file_path(dataset, subset), published=True
        ).templates:
            if lacking := CompiledTemplate(template).missing_columns(columns):
                missing[dataset, subset, template.name] = lacking
    assert missing == {}


def test_promptsource_parity_of_fixed_choices():
    for dataset, subset in [
        ("super_glue", "rte"),
        ("trec", None),
        ("glue", "mrpc"),
        ("imdb", None),
    ]:
        templates = stock.DatasetTemplates(dataset, subset)
        for template in read_template_file(
            template_file_path(dataset, subset), published=True
        ).templates:
            wanted = templates[template.name].get_fixed_answer_choices_list()
            assert CompiledTemplate(template).fixed_choices == wanted


@pytest.mark.parametrize("length", range(2005, 2060, 3))
def test_promptsource_parity_of_separators_near_truncation(length):
    theirs = next(template for template in STOCK_WEATHER if template.name == "where")
    ours = {template.name: template for template in read_template_file(WEATHER).templates}["where"]
    row = {"report": "w" * length + "|||", "place": "a ||| " * (length // 38)}
    assert CompiledTemplate(ours).apply(row) == theirs.apply(row)


TEXT = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(
            ["|||", "||", " ", "\n", "{{", "}}", "{% x %}", "<b>&", "a" * 700, "w " * 400]
        ),
    ),
    max_size=8,
).map("".join)
ROWS = st.fixed_dictionaries(
    {
        "report": TEXT,
        "place": TEXT,
        "options": st.lists(TEXT, min_size=2, max_size=4),
        "label": st.integers(-1, 1),
    }
)


@pytest.mark.parametrize("template", STOCK_WEATHER, ids=lambda template: template.name)
def test_promptsource_parity_on_generated_rows(template, monkeypatch):
    templates = read_template_file(WEATHER, published=True).templates
    ours = {t.name: t for t in templates}[template.name]
    prompt = CompiledTemplate(ours, "seed")
    stream = Stream(monkeypatch)

    @hypothesis.given(row=ROWS, row_index=st.integers(0, 2**40))
    @hypothesis.settings(max_examples=40, derandomize=True, database=None)
    def check(row, row_index):
        # Promptsource splits at a separator in nested text and choices (render_test.py).
        row["options"] = [text.replace("|", "/") for text in row["options"]]
        if template.name == "choices of text":
            row = {n: v.replace("|", "/") if isinstance(v, str) else v for n, v in row.items()}
        assert_same(template, prompt, row, row_index, stream)

    check()

import json
import re

import pytest
from made_up_evaluations import two_models
from parsed_pages import parsed, table_texts

from t0.reports import page, write_report


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return write_report(two_models(folder), folder / "out", notes=["This is a toy."])


def test_page_needs_no_network(report):
    html = report.html.read_text()
    assert not re.findall(r"(?:https?:|ftp:|file:|@import|//[a-z0-9])", html.split("<main>")[1])
    for tag, name, value in parsed(html).attributes:
        if name in ("href", "src", "xlink:href", "action", "data"):
            own = value in ("report.csv", "report.json")
            assert own or value.startswith(("#", "data:")), (tag, name, value)
    assert not re.findall(r"url\((?!#)", html)
    assert "default-src 'none'" in html


def test_page_shows_the_numbers(report):
    paths = report
    data = json.loads(paths.json.read_text())
    text = table_texts(paths.html.read_text())
    assert "This is a toy." in text
    for row in data["datasets"]:
        assert f"{row['accuracy']['mean']:.1f}" in text
        assert "{:.1f} to {:.1f}".format(*row["interval_of_mean"]) in text
    assert "64.6" in text
    assert "second, step 100" in text


def test_points_carry_the_prompts_names(report):
    html = report.html.read_text()
    shared = html.split('<div class="panels" hidden>')[0]  # the same again with other axes follow
    titles = re.findall(r"<title>([^<]*)</title>", shared)[1:]
    assert sum(title.startswith("prompt 2: ") for title in titles) == 2
    assert sum(title.startswith("mean over") for title in titles) == 6


def test_ids_are_unique(report):
    html = report.html.read_text()
    ids = [value for _, name, value in parsed(html).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', html))
    assert used <= set(ids)


def test_many_examples_are_in_scripts_beside_the_page(two_runs, tmp_path, report, monkeypatch):
    whole = report.html
    assert not list(whole.parent.glob("report_examples_*"))
    assert "script-src 'sha256-" in whole.read_text()
    assert " file:" not in whole.read_text().split("<main>")[0]
    monkeypatch.setattr(page, "EMBEDDED_BYTES", 1_000)
    html = write_report(two_runs, tmp_path / "out").html
    names = sorted(path.name for path in html.parent.glob("report_examples_*"))
    assert names == ["report_examples_0.js", "report_examples_1.js", "report_examples_2.js"]
    assert len(html.read_bytes()) < len(whole.read_bytes())
    assert "'self' file:" in html.read_text()
    # A later report with fewer examples leaves none of these behind.
    monkeypatch.undo()
    write_report(two_runs[:1], html.parent)
    assert not list(html.parent.glob("report_examples_*"))


def test_a_large_page_leaves_out_the_second_axes(two_runs, tmp_path, report, monkeypatch):
    large = report.html.read_text()
    monkeypatch.setattr(page, "PAGE_LIMIT_BYTES", len(large) - 1_000)
    out = write_report(two_runs, tmp_path / "small").html
    assert len(out.read_text()) < len(large) / 1.5
    assert 'class="own-axes"' in large
    assert 'class="own-axes"' not in out.read_text()
    assert len(list(out.parent.glob("report_examples_*"))) == 3


def test_the_answer_comes_first(report):
    paths, html = report, report.html.read_text()
    order = [
        'class="answer"',
        "This is a toy.",
        'id="datasets"',
        'id="prompts"',
        'id="examples"',
        'id="runs"',
    ]
    places = [html.index(text) for text in order]
    assert places == sorted(places)
    means = [row for row in json.loads(paths.json.read_text())["datasets"] if row["run"][0] == "f"]
    held_out = [row["accuracy"]["mean"] for row in means if row["group"] == "held-out"]
    assert f'class="big">{sum(held_out) / 2:.1f} %' in html
    assert "chance</dt><dd>50.0" in html
    assert "T0-3B</dt><dd>70.2" in html  # (64.6 + 75.9) / 2
    # Datasets that were trained on come after those that were held out.
    groups = [row["group"] for row in means]
    assert groups == ["held-out", "held-out", "training"]
    for name in ("report.csv", "report.json"):
        assert f'href="{name}"' in html

import json
import re

import pytest

from t0.reports import report, write_report
from tests.reports.made_up_evaluations import random_lines
from tests.reports.parsed_pages import parsed, table_texts


def test_report_page_needs_no_network(drawn):
    html = drawn.html.read_text()
    assert not re.findall(r"(?:https?:|ftp:|file:|@import|//[a-z0-9])", html.split("<main>")[1])
    for tag, name, value in parsed(html).attributes:
        if name in ("href", "src", "xlink:href", "action", "data"):
            own = re.fullmatch(r"report\w*\.(csv|json)", value)
            assert own or value.startswith(("#", "data:")), (tag, name, value)
    assert not re.findall(r"url\((?!#)", html)
    assert "default-src 'none'" in html


def test_report_page_shows_the_numbers(drawn):
    paths = drawn
    data = json.loads(paths.json.read_text())
    text = table_texts(paths.html.read_text())
    assert "This is a toy." in text
    for row in data["datasets"]:
        assert f"{row['mean']:.1f}" in text
        assert f"{row['interval_low']:.1f} to {row['interval_high']:.1f}" in text
    assert "64.6" in text
    assert "second, step 100" in text


def test_report_page_plot_points_name_their_prompts(drawn):
    html = drawn.html.read_text()
    titles = re.findall(r"<title>([^<]*)</title>", html)[1:]
    assert sum(title.startswith("prompt 2: ") for title in titles) == 2
    assert sum(title.startswith("mean over") for title in titles) == 6


def test_report_page_element_ids_are_unique(drawn):
    html = drawn.html.read_text()
    ids = [value for _, name, value in parsed(html).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', html))
    assert used <= set(ids)


@pytest.mark.usefixtures("rough_pictures")
def test_report_page_puts_many_examples_in_separate_scripts(two_runs, tmp_path, drawn, monkeypatch):
    whole = drawn.html
    assert not list(whole.parent.glob("report_examples_*"))
    assert "script-src 'sha256-" in whole.read_text()
    assert " file:" not in whole.read_text().split("<main>")[0]
    with monkeypatch.context() as patch:
        patch.setattr(report, "EMBEDDED_BYTES", 1_000)
        html = write_report(two_runs, tmp_path / "out").html
    names = sorted(path.name for path in html.parent.glob("report_examples_*"))
    assert names == ["report_examples_0.js", "report_examples_1.js", "report_examples_2.js"]
    assert len(html.read_bytes()) < len(whole.read_bytes())
    assert "'self' file:" in html.read_text()
    # A later report with fewer examples leaves none of these behind.
    write_report(two_runs[:1], html.parent)
    assert not list(html.parent.glob("report_examples_*"))


@pytest.mark.usefixtures("rough_pictures")
def test_report_page_stays_small_with_many_examples(evaluation, tmp_path):
    lines = random_lines(4_000, [2], seed=1, inputs="")
    for line in lines:
        line["inputs"] = f"Row {line['idx']} <b>&" * 80
    path = evaluation("many").add("rte_0", "super_glue/rte", "prompt 0", lines).write()
    html = write_report([path], tmp_path / "out").html
    assert html.stat().st_size < 2_000_000
    (script,) = html.parent.glob("report_*.js")
    assert script.stat().st_size > 4_000_000
    assert all(f"Row {row} " in script.read_text() for row in (0, 3_999))


def test_report_page_contents_link_to_every_section_in_order(drawn):
    html = drawn.html.read_text()
    contents = re.search(r'<nav id="contents".*?</nav>', html, re.DOTALL)[0]
    sections = re.findall(r'<section id="([^"]+)"', html)
    assert re.findall(r'href="#([^"]+)"', contents) == sections
    assert {"differences", "prompt_differences", "training", "examples"} <= set(sections)
    assert 'href="#contents"' in html


def test_report_page_sorts_compared_accuracies_by_each_run(drawn):
    table = (
        drawn.html.read_text().partition('<section id="accuracies">')[2].partition("</table>")[0]
    )
    rows = json.loads(drawn.json.read_text())["accuracies"]
    for name, letter in (("first", "A"), ("second", "B")):
        cells = re.findall(rf'data-label="{letter} {name}[^"]*" data-sort="([^"]+)"', table)
        keys = [key for key in rows[0]["accuracies"] if key.startswith(name)]
        assert list(map(float, cells)) == [row["accuracies"][keys[0]]["mean"] for row in rows]


def test_report_page_shows_the_held_out_mean_first(drawn):
    paths, html = drawn, drawn.html.read_text()
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
    held_out = [row["mean"] for row in means if row["group"] == "held-out"]
    assert f'class="big">{sum(held_out) / 2:.1f} %' in html
    assert "chance</dt><dd>50.0" in html
    assert "T0-3B</dt><dd>70.2" in html  # (64.6 + 75.9) / 2
    # Datasets that were trained on come after those that were held out.
    groups = [row["group"] for row in means]
    assert groups == ["held-out", "held-out", "training"]
    for name in ("report.csv", "report.json"):
        assert f'href="{name}"' in html

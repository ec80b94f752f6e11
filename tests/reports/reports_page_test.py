import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from made_up_evaluations import example_line, random_lines

from t0.reports import page, write_report
from t0.reports.lines import smoothed
from t0.reports.plots import title_lines

EVIL = "</script><img src=x onerror=alert(1)>&\"'"


class Elements(HTMLParser):
    """Collects the elements that a browser would make, scripts' texts, and all visible text."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script" and self.scripts:
            self.scripts[-1] += data
        self.text.append(data)


def parsed(html):
    parser = Elements()
    parser.feed(html)
    parser.close()
    return parser


def table_texts(html):
    return re.sub(r"\s+", " ", " ".join(parsed(html).text))


@pytest.fixture
def evil_page(evaluation, tmp_path):
    lines = [
        example_line(i, [-1.0, -3.0], 1, texts=[EVIL, f"b\u2028{EVIL}"], inputs=EVIL)
        for i in range(3)
    ]
    path = (
        evaluation("evil", name=EVIL, notes=[EVIL], mixture=EVIL)
        .add("evil", EVIL, EVIL, lines, group=EVIL, excluded={EVIL: 1})
        .write()
    )
    return write_report([path], tmp_path / "out", title=EVIL, notes=["{{ 7 * 7 }}" + EVIL])


def test_untrusted_text_stays_text_in_the_page(evil_page):
    html = evil_page.html.read_text()
    found = parsed(html)
    assert "img" not in found.tags
    assert not [a for a in found.attributes if a[1].startswith("on")]
    assert found.tags.count("script") == 2
    data = json.loads(found.scripts[0])
    assert data["tasks"][0]["errors"][0]["choices"][0][0] == EVIL
    assert data["tasks"][0]["errors"][0]["inputs"] == EVIL
    assert "<" not in found.scripts[0]
    assert "{{ 7 * 7 }}" + EVIL in "".join(found.text)
    assert "innerHTML" not in html


def test_untrusted_text_stays_text_in_markdown(evil_page):
    markdown = evil_page.markdown.read_text()
    assert "<img" not in markdown
    assert "</script>" not in markdown
    cells = {line.count(" | ") for line in markdown.split("## Prompts")[1].splitlines() if line}
    assert len(cells) == 1


def test_page_needs_no_network(two_runs, tmp_path):
    html = write_report(two_runs, tmp_path / "out").html.read_text()
    assert not re.findall(r"(?:https?:|ftp:|file:|@import|//[a-z0-9])", html.split("<main>")[1])
    for tag, name, value in parsed(html).attributes:
        if name in ("href", "src", "xlink:href", "action", "data"):
            assert value.startswith(("#", "data:")), (tag, name, value)
    assert not re.findall(r"url\((?!#)", html)
    assert "default-src 'none'" in html


def test_page_shows_the_numbers(two_runs, tmp_path):
    paths = write_report(two_runs, tmp_path / "out", notes=["This is a toy."])
    data = json.loads(paths.json.read_text())
    text = table_texts(paths.html.read_text())
    assert "This is a toy." in text
    for row in data["datasets"]:
        assert f"{row['accuracy']['mean']:.1f}" in text
        assert "{:.1f} to {:.1f}".format(*row["interval_of_mean"]) in text
    assert "64.6" in text
    assert "second, step 100" in text


def test_points_carry_the_prompts_names(two_runs, tmp_path):
    html = write_report(two_runs[:1], tmp_path / "out").html.read_text()
    titles = re.findall(r"<title>([^<]*)</title>", html)[1:]
    assert sum(title.startswith("prompt 2: ") for title in titles) == 1
    assert sum(title.startswith("mean over") for title in titles) == 3


def test_ids_are_unique(two_runs, tmp_path):
    html = write_report(two_runs, tmp_path / "out").html.read_text()
    ids = [value for _, name, value in parsed(html).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', html))
    assert used <= set(ids)


def test_page_stays_small(evaluation, tmp_path, monkeypatch):
    lines = random_lines(60, [3], 1, inputs="x" * 5000)
    path = evaluation().add("a", "sciq", "q", lines).write()
    large = write_report([path], tmp_path / "large").html.read_text()
    assert json.loads(parsed(large).scripts[0])["tasks"][0]["errors"][0]["inputs"].count("x") < 2000
    monkeypatch.setattr(page, "PAGE_LIMIT_BYTES", len(large) - 10_000)
    small = write_report([path], tmp_path / "small").html.read_text()
    errors = json.loads(parsed(small).scripts[0])["tasks"][0]["errors"]
    assert len(small) < len(large) - 10_000
    assert 0 < len(errors) < 20
    assert "to keep this page small" in small
    monkeypatch.setattr(page, "PAGE_LIMIT_BYTES", 1)
    assert "error-data" not in parsed(write_report([path], tmp_path / "no").html.read_text()).text


def test_results_without_scores_say_so(evaluation, tmp_path):
    made = evaluation().add("a", "sciq", "q", random_lines(9, [4], 1), with_scores=False, chance=25)
    html = write_report([made.write()], tmp_path / "out").html.read_text()
    assert "1 of 1 tasks have no per-example scores" in html
    assert "Worst errors" not in html


def test_formats():
    assert page.signed(-0.04) == "0.0"
    assert page.p_value(0.0004) == "< 0.001"
    assert page.p_value(0.0312) == "0.031"
    assert page.fact({"inputs": 1024, "eos": True, "none": None}) == "inputs 1024, eos yes, none –"
    assert smoothed([1.0, 2.0, 6.0, 7.0], radius=1) == [1.0, 3.0, 5.0, 7.0]


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 500])
def test_page_in_a_browser(two_runs, tmp_path, width):
    """The script runs, the page is no wider than the window, and the picture is not blank."""
    html = write_report(two_runs, tmp_path / "out").html
    probe = html.with_name("probe.html")
    # Outside the policy of the page itself: a copy whose policy admits the probe's script.
    text = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", html.read_text())
    script = (
        "document.querySelectorAll('#prompt-table th button')[3].click();"
        "const rows=[...document.querySelectorAll('#prompt-table tbody tr')];"
        "const values=rows.map(r=>Number(r.cells[3].dataset.sort));"
        "document.body.dataset.sorted=values.every((v,i)=>!i||v<=values[i-1]);"
        "document.body.dataset.shown=rows.filter(r=>!r.hidden).length;"
        "document.body.dataset.cards=document.querySelectorAll('.error').length>0;"
        "document.body.dataset.wide=document.documentElement.scrollWidth-innerWidth;"
    )
    probe.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    flags = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={width},3000",
    ]  # fmt: skip
    done = subprocess.run(
        [*flags, "--dump-dom", probe.as_uri()], capture_output=True, text=True, timeout=120
    )
    body = re.search(r"<body[^>]*>", done.stdout)[0]
    assert 'data-sorted="true"' in body
    assert 'data-shown="18"' in body
    assert 'data-cards="true"' in body
    assert int(re.search(r'data-wide="(-?\d+)"', body)[1]) <= 0
    shot = tmp_path / "shot.png"
    subprocess.run(
        [*flags, f"--screenshot={shot}", html.as_uri()], capture_output=True, timeout=120
    )
    from PIL import Image

    image = Image.open(shot).convert("L")
    assert image.width == width
    low, high = image.getextrema()
    assert low < 80 and high == 255


def test_accuracy_of_ties_is_warned_of_once(evaluation, tmp_path):
    tied = [example_line(i, [-1.0, -1.0], i % 2) for i in range(4)]
    told = [example_line(i, [-1.0, -2.0], i % 2) for i in range(4)]
    paths = [
        evaluation(model).add("a", "sciq", "a", tied).add("b", "sciq", "b", told).write()
        for model in ("one", "two")
    ]
    text = table_texts(write_report(paths, tmp_path / "out").html.read_text())
    assert text.count("most examples have several choices of the same highest score") == 1
    assert "In 2 of 4 evaluations of a task" in text


def test_long_names_are_broken_not_cut(evaluation, tmp_path):
    name = "a_dataset_with_an_odd_name/and-a-very-long-configuration.v2.0.1"
    path = evaluation().add("a", name, "q", random_lines(9, [2], 1)).write()
    html = write_report([path], tmp_path / "out").html.read_text()
    lines = title_lines(name)
    assert lines == ["a_dataset_with_an_odd_name/", "and-a-very-long-configuration.", "v2.0.1"]
    assert all(f">{line}<" in html for line in lines)
    assert [len(line) for line in title_lines("x" * 200)] == [30, 30, 30]
    assert title_lines("x" * 200)[-1].endswith("…")
    assert title_lines("RTE") == ["RTE"]

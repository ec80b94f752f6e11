import json
import re
import shutil
import subprocess

import pytest
from made_up_evaluations import Decoded, random_lines
from parsed_pages import parsed, table_texts

from t0.reports import page, write_report


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


def test_many_predictions_do_not_swell_the_page(folder, tmp_path, monkeypatch):
    lines = [{"inputs": "x" * 5000, "prediction": "y" * 5000, "targets": "z" * 5000}] * 9
    path = Decoded(folder).add("x", {"accuracy": 1.0}, lines).write()
    large = write_report([path], tmp_path / "large").html.read_text()
    assert large.count("x" * 1000) == 5
    assert "more characters]" in large
    monkeypatch.setattr("t0.reports.page.PAGE_LIMIT_BYTES", len(large) - 100)
    small = write_report([path], tmp_path / "small").html.read_text()
    assert 0 < small.count("x" * 1000) < 5


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

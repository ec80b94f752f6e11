"""Pages in headless Chromium: the examples beside a page, keyboard, touch, switch and widths.

Each test starts one browser.
"""

import csv
import io
import json
import re
import shutil
import subprocess

import pytest

from t0.reports import report, write_report
from tests.reports.headless_browser import FLAGS, looks, probed
from tests.reports.made_up_evaluations import Decoded, Evaluation, random_lines, write_metrics

pytestmark = pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")

EVIL = '</script><img src=x onerror="document.body.dataset.evil=1"> &amp; \''


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """A page of two models, with its examples in scripts beside it; one answer is hostile."""
    folder = tmp_path_factory.mktemp("page")
    paths = []
    for model, skill in (("first", 0.2), ("second", 2.0)):
        made = Evaluation(folder / model / "eval")
        for p in range(3):
            lines = random_lines(50, [2], seed=p, skill=skill)
            for line in lines:
                line["inputs"] = f"Row {line['idx']} {EVIL}"
            lines[7]["choices"][0]["text"] = EVIL
            made.add(f"rte_{p}", "super_glue/rte", f"prompt {p}", lines, group="held-out")
        made.add("sciq_a", "sciq", EVIL, random_lines(30, [4], 9), group="training")
        paths.append(made.write())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "EMBEDDED_BYTES", 0)
        patch.setattr(report, "panel_pictures", lambda *_, **__: {"png": b""})
        return write_report(paths, folder / "out").html


def test_report_page_examples_keyboard_and_tooltips(html, tmp_path):
    script = """
    await wait(() => all('article.error').length);
    seen.cards = all('article.error').length;
    seen.count = id('example-count').textContent;
    all('#example-list > .more')[0].click();
    seen.more = all('article.error').length;
    choose('pick-kind', 'wrong');
    seen.wrong = id('example-count').textContent;
    choose('pick-kind', 'right');
    seen.right = id('example-count').textContent;
    choose('pick-kind', 'all');
    choose('pick-other', '1');
    seen.beside = all('article.error')[0].querySelectorAll('th').length;
    seen.kinds = all('#pick-kind option').map(o => o.value);
    choose('pick-kind', 'lost');
    const lost = parseInt(id('example-count').textContent);
    choose('pick-kind', 'gained');
    seen.differ = lost + parseInt(id('example-count').textContent);
    choose('pick-kind', 'all');
    id('pick-words').value = 'row 13';
    id('pick-words').dispatchEvent(new Event('input'));
    seen.searched = all('article.error h4').map(h => h.textContent);
    seen.matrix = all('.matrix').length;
    seen.diagnosis = id('diagnosis').textContent;
    id('pick-words').value = '';
    all('button[data-task=rte_2]')[0].click();
    seen.prompt = id('pick-prompt').selectedOptions[0].textContent;
    choose('pick-dataset', '1');
    await wait(() => id('example-count').textContent.startsWith('30'));
    seen.other = id('example-count').textContent;
    seen.evil = document.body.dataset.evil || '';
    seen.images = all('img').length;
    const svg = all('figure svg')[0];
    svg.focus();
    seen.focused = document.activeElement === svg;
    key(svg, 'ArrowRight');
    seen.first = id('tip').textContent;
    key(svg, 'ArrowRight');
    seen.second = id('tip').textContent;
    seen.shown = !id('tip').hidden;
    key(svg, 'Escape');
    seen.hidden = id('tip').hidden;
    svg.querySelectorAll('.tip')[3].dispatchEvent(new MouseEvent('click', {bubbles: true}));
    seen.tapped = !id('tip').hidden && id('tip').textContent;
    all('#prompts-table th button')[3].click();
    const values = all('#prompts-table tbody tr').map(r => Number(r.cells[3].dataset.sort));
    seen.sorted = values.every((v, i) => !i || v <= values[i - 1]);
    seen.folded = !all('#runs details')[0].open;
    """
    seen = probed(html, script, tmp_path, "--window-size=1400,2000")
    assert (seen["cards"], seen["count"], seen["more"]) == (20, "50 of 50 examples", 40)
    wrong, right = (int(seen[name].split()[0]) for name in ("wrong", "right"))
    assert wrong + right == 50
    assert 0 < wrong < 50
    assert seen["kinds"] == ["all", "wrong", "right", "gained", "lost"]
    assert 0 < seen["differ"] < 50
    assert seen["beside"] == 3  # the choice, and a log-likelihood of each run
    assert seen["searched"] == ["Example 13"]
    assert seen["matrix"] == 2
    # The choices of row 7 are others.
    assert "an answer is the position of a choice" in seen["diagnosis"]
    assert (seen["prompt"], seen["other"]) == ("prompt 2", "30 of 30 examples")
    assert (seen["evil"], seen["images"]) == ("", 0)
    assert seen["focused"]
    assert re.match(r"(prompt \d|mean over 3 prompts): \d", seen["first"])
    assert seen["first"] != seen["second"]
    assert seen["shown"]
    assert seen["hidden"]
    assert "%" in seen["tapped"]
    assert seen["sorted"]
    assert seen["folded"]


def test_report_page_content_policy_and_narrow_screen(html, tmp_path):
    """In frames of a phone's and of a desk's width, the page as it was written."""
    frame = html.with_name("frame.html")
    frame.write_text(
        "".join(f"<iframe src=report.html width={w} height=900></iframe>" for w in (380, 1400))
        + """<pre id=seen></pre><script>
        setTimeout(() => {
          const seen = [...document.querySelectorAll('iframe')].map(frame => {
            const inside = frame.contentDocument;
            return [inside.querySelectorAll('article.error').length,
              inside.documentElement.scrollWidth - inside.documentElement.clientWidth];
          });
          document.getElementById('seen').textContent = JSON.stringify(seen);
        }, 8000);
        </script>"""
    )
    done = subprocess.run(
        [
            *FLAGS, "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1900,1000", "--dump-dom", frame.as_uri(),
        ],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    found = json.loads(re.search(r'<pre id="seen">(.*?)</pre>', done.stdout)[1])
    assert found == [[20, 0], [20, 0]]


def test_examples_download_has_what_the_page_shows(html, tmp_path):
    script = """
    await wait(() => all('article.error').length);
    let blob = null;
    URL.createObjectURL = content => { blob = content; return '#'; };
    const download = async () => {
      id('download-examples').click();
      return await blob.text();
    };
    choose('pick-kind', 'wrong');
    seen.count = parseInt(id('example-count').textContent);
    seen.wrong = await download();
    choose('pick-kind', 'all');
    choose('pick-other', '1');
    seen.compared = await download();
    seen.widths = all('.wrap').map(box => [box.scrollWidth, box.clientWidth]);
    """
    seen = probed(html, script, tmp_path, "--window-size=1280,900")
    rows = list(csv.DictReader(io.StringIO(seen["wrong"], newline="")))
    assert len(rows) == seen["count"] > 0
    assert list(rows[0])[:6] == ["id", "prompt", "text", "target", "prediction", "correct"]
    assert {row["correct"] for row in rows} == {"false"}
    assert all(EVIL in row["text"] for row in rows)
    assert all(row["target"] != row["prediction"] for row in rows)
    compared = list(csv.DictReader(io.StringIO(seen["compared"], newline="")))
    assert len(compared) == 50
    assert {"A prediction", "B prediction", "A score 1", "choice 2"} <= set(compared[0])
    assert all(scroll <= client for scroll, client in seen["widths"])


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_report_page_fits_and_can_be_read_in_both_themes(html, tmp_path, width, dark):
    seen = looks(html, tmp_path, width, dark=dark, ready="all('article.error').length")
    assert seen == {"width": width, "overflow": 0, "dark": dark, "faint": []}


# Each text would run a script if the page wrote it as HTML, as an attribute, as a link, or as JSON.
ATTACKS = (
    EVIL,
    '" autofocus tabindex=1 onfocus="document.body.dataset.evil=2" x="',
    "' onmouseover='document.body.dataset.evil=3' x='",
    "javascript:document.body.dataset.evil=4",
    "]]></style></title></svg><svg onload=document.body.dataset.evil=5>",
    "<!--<script>\u2028 $\\frac{1}{$ ${document.body.dataset.evil=6} {{7*7}}",
)


@pytest.mark.slow
def test_report_page_shows_hostile_texts_of_all_fields_as_texts(tmp_path, monkeypatch):
    numbers = iter(range(10**6))

    def attack(text=""):
        return f"{next(numbers)} {text} {ATTACKS[next(numbers) % len(ATTACKS)]}"

    words, facts = [], ("split", "dtype", "engine", "vocabulary", "normalisation", "git", "command")
    for model in ("first", "second"):
        run = dict.fromkeys(facts, ATTACKS[0]) | {"model_dir": attack("model"), "note": attack()}
        made = Evaluation(tmp_path / model / "eval", **run)
        for task, attacked in zip("abcdef", ATTACKS, strict=True):
            lines = random_lines(40, [2], seed=3, inputs=attacked)
            for line in lines:
                line["document"] = f"{line['idx'] // 2} {attacked}"
                for choice in line["choices"]:
                    choice["text"] += attacked
            made.add(task, attacked, f"prompt {attacked}", lines, group="held-out")
            made.tasks[task]["metrics"][attacked] = 12.0
        words.append(f"{attack('label').replace('=', '-')}={made.write().parent}")
        decoded = Decoded(tmp_path / model / "eval", **run)
        line = {"inputs": attack(), "prediction": attack(), "targets": [attack()]}
        decoded.add("decoded", {"em": 30.0, attack(): 5.0}, [line], signatures={"em": attack()})
        decoded.write()
        curves = write_metrics(tmp_path / f"metrics {model} <img src=x>" / "metrics.jsonl")
        record = {"step": 3, attack(): 2.0, f"eval/{ATTACKS[4]}": 3.0, f"eval/{ATTACKS[5]}/em": 3.0}
        curves.write_text(curves.read_text() + json.dumps(record) + "\n")
    monkeypatch.setattr(report, "panel_pictures", lambda *_, **__: {"png": b""})
    metrics = sorted(tmp_path.glob("metrics*/metrics.jsonl"))
    html = write_report(words, tmp_path / "out", metrics_paths=metrics).html
    script = """
    await wait(() => all('article.error').length);
    for (const box of all('details')) box.open = true;
    for (const list of all('select'))
      for (const option of list.options) choose(list.id, option.value);
    for (const button of all('button')) button.click();
    for (const tip of all('.tip')) tip.dispatchEvent(new MouseEvent('click', {bubbles: true}));
    for (const element of all('[tabindex], button, a')) element.focus();
    for (const element of all('*')) element.dispatchEvent(new MouseEvent('mouseover'));
    await new Promise(r => setTimeout(r, 200));
    seen.evil = document.body.dataset.evil || '';
    seen.images = all('img, iframe, object, embed, base, form').length;
    seen.links = all('a').map(a => a.getAttribute('href')).filter(h => /^\\s*\\w+:/.test(h));
    seen.handlers = all('*').flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'));
    seen.scripts = all('script:not([src], [type])').length;
    seen.text = document.body.textContent;
    """
    seen = probed(html, script, tmp_path)
    assert seen.pop("evil") == ""
    assert all(text in seen["text"] for text in ATTACKS[:5])
    del seen["text"]
    assert seen == {"images": 0, "links": [], "handlers": [], "scripts": 2}  # the page's and ours

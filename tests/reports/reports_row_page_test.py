"""The page of `t0 show --html`: its texts, its size, and how it works in headless Chromium."""

import shutil

import pytest

from t0.catalogue.row_preview import PreviewText, RowPreview
from t0.errors import AbsentData, UserError
from t0.reports.row_page import render_row_page
from tests.reports.headless_browser import looks, probed
from tests.reports.parsed_pages import parsed

in_chromium = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed"),
]
HOSTILE = (
    "</span></div></script><script>document.body.dataset.evil=1</script>",
    "<img src=x onerror='document.body.dataset.evil=2'>\" onfocus=\"x",
    "line\u2028separator and \u202e a turn",
    "half of a pair \ud800, a bell \x07 and a return \r",
    "{{ 7 * 7 }} <!-- ]]> &amp;",
)


def row(inputs, title="a row", *, cut=None, unknown=(), choices=("no", "yes"), notes=()):
    text = PreviewText(inputs, [5, 6, 7], 2, cut, unknown)
    answers = [PreviewText(choice, [8, 1], 9) for choice in choices]
    return RowPreview(title, text, answers[-1], answers, notes)


def rows(count, words="words"):
    return [row(f"{words} {n}", f"row {n}") for n in range(count)]


def test_spans_mark_unknown_and_truncated_parts():
    text = PreviewText("ab☂☃cd", [0] * 9, 3, 4, [(2, 3), (3, 4)])
    expected = [("ab", False, False), ("☂", True, False), ("☃", True, False), ("cd", False, True)]
    assert text.spans == expected
    assert PreviewText("ab", [0, 0, 1], 2, 2).spans == [("ab", False, False), ("", False, True)]
    assert PreviewText("☂b", [0, 0], 0, 0, [(0, 1)]).spans == [
        ("☂", True, True),
        ("b", False, True),
    ]
    assert PreviewText("", [], 5).spans == []


def test_row_page_shows_texts_tokens_and_marks():
    shown = row("see☂ past", cut=4, unknown=[(3, 4)], notes=["a note"])
    html, notes = render_row_page(
        "tea", {"a_b": [shown]}, most_rows=9, pieces=lambda ids: [f"p{i}" for i in ids]
    )
    text = "".join(parsed(html).text)
    assert "see☂" in text.replace("CUT at 2 tokens; the model does not see what follows", "")
    assert '<span class="unknown">☂</span>' in html and '<span class="cut "> past</span>' in html
    assert "3 tokens of at most 2, 1 too many" in text and "p5 p6 p7" in text
    assert html.count("✓ target") == 1 and "a note" in text and notes == []
    assert "5 6 7" in render_row_page("tea", {"a_b": [shown]}, most_rows=9)[0]


def test_row_page_shows_hostile_texts_as_texts():
    made = [row(text, text, choices=(text, "yes"), notes=[text]) for text in HOSTILE]
    html, _ = render_row_page(HOSTILE[0], {HOSTILE[1]: made}, most_rows=9, notes=[HOSTILE[0]])
    page = parsed(html.encode().decode())
    assert page.tags.count("script") == 1 and "img" not in page.tags
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    text = "".join(page.text)
    for hostile in (*HOSTILE[:3], HOSTILE[4], "a pair \\ud800, a bell \\x07 and a return \\r"):
        assert text.count(hostile) >= 3
    assert "default-src 'none'" in html and "://" not in html


@pytest.mark.parametrize("largest", [30_000, 60_000, 200_000])
def test_row_page_has_fewer_rows_if_it_would_be_larger(largest):
    prompts = {"long": rows(200, "☂ words " * 30), "short": rows(200), "tail": rows(200)}
    html, notes = render_row_page("tea", prompts, most_rows=200, largest=largest)
    assert len(html.encode()) <= largest
    counts = {name: html.count(f"<h4>{name}") for name in ("row 0", "row 199")}
    assert counts["row 0"] == 3 and counts["row 199"] < 3
    assert notes[0].startswith("fewer rows, because more do not fit: long (") and notes[
        0
    ] in "".join(parsed(html).text)


def test_row_page_reads_no_more_rows_than_it_shows():
    endless = (row(f"text {n}", f"row {n}") for n in iter(int, 1))
    html, notes = render_row_page("tea", {"a": endless}, most_rows=7)
    assert html.count("<article") == 7 and notes == []


def test_row_page_leaves_out_prompts_without_data():
    def absent():
        raise AbsentData("no file for b")
        yield

    html, notes = render_row_page("tea", {"a": rows(2), "b": absent()}, most_rows=9)
    assert notes == ["left out, because the data is missing: b"]
    assert html.count('type="radio"') == 1 and notes[0] in html
    with pytest.raises(UserError, match="no file for b"):
        render_row_page("tea", {"b": absent()}, most_rows=9)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    made = [*rows(3), row("see☂ past " * 90, cut=4, unknown=[(3, 4)], notes=["a note"])]
    made += [row(text, text, choices=HOSTILE, notes=[text]) for text in HOSTILE]
    prompts = {"tea_" + "long_name_" * 9: made, "second": [row("x" * 500), row("see this")]}
    path = tmp_path_factory.mktemp("rows") / "rows.html"
    path.write_text(render_row_page("tea", prompts, most_rows=99, notes=["a note"])[0])
    return path


class TestInChromium:
    pytestmark = in_chromium

    def test_tabs_search_and_kinds_select_rows(self, written, tmp_path):
        script = """
        const shown = () => all('article').filter(e => e.checkVisibility()).length;
        const enter = (name, value) => {
          id(name).value = value;
          id(name).dispatchEvent(new Event('input', {bubbles: true}));
        };
        const tabs = all('#tabs input');
        seen.first = [shown(), id('count').textContent];
        enter('words', 'SEE  past');
        seen.searched = [shown(), id('count').textContent, ...all('#tabs small').map(e => e.textContent)];
        enter('words', 'see');
        seen.counts = all('#tabs small').map(e => e.textContent);
        tabs[1].click();
        seen.second = [shown(), id('count').textContent];
        enter('words', '');
        tabs[0].click();
        for (const kind of ['.mark', '.unknown', '.remark', '*']) {
          enter('kind', kind);
          seen[kind] = shown();
        }
        seen.evil = document.body.dataset.evil || '';
        """
        assert probed(written, script, tmp_path) == {
            "first": [9, "9 of 9 rows"],
            "searched": [1, "1 of 9 rows", "1", "0"],
            "counts": ["1", "1"],
            "second": [1, "1 of 2 rows"],
            ".mark": 1,
            ".unknown": 1,
            ".remark": 6,
            "*": 9,
            "evil": "",
        }

    @pytest.mark.parametrize("width", [400, 1280])
    @pytest.mark.parametrize("dark", [False, True])
    def test_page_fits_and_can_be_read_in_both_themes(self, written, tmp_path, width, dark):
        seen = looks(written, tmp_path, width, dark=dark)
        assert seen == {"width": width, "overflow": 0, "dark": dark, "faint": []}

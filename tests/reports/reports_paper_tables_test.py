"""Tables for a paper: their numbers, bold cells, caption, escapes and refusals."""

import re
import statistics

import pytest

from t0.cli import main as cli
from t0.errors import UserError
from t0.reports import comparison
from t0.reports.evaluations import read_runs
from t0.reports.paper_tables import escape_latex, escape_markdown, make_paper_table
from t0.reports.report_runs import read_named_runs
from tests.reports.made_up_evaluations import random_lines

HOSTILE = r"a&b_c%$#{x}~^\<|>--[*]"


@pytest.fixture
def words(evaluation):
    """Three models on RTE and CB; the last did not score CB."""
    words = []
    for name, skill in (("weak", 0.0), ("good", 3.0), ("same", 3.05)):
        made = evaluation(name)
        for p in range(4):
            lines = random_lines(80, [2], p, skill=skill + p / 10)
            made.add(f"rte_{p}", "super_glue/rte", f"prompt {p}", lines)
        if name != "same":
            lines = random_lines(50, [2], 9, skill=skill)
            made.add("cb_0", "super_glue/cb", "prompt 0", lines)
        words.append(f"{name}={made.write()}")
    return words


def table_of(words, **options):
    return make_paper_table(comparison.compare(read_named_runs(words)[0]), **options)


def parse_latex(text):
    """Returns the cells of each row, with the checks of the structure that LaTeX would make."""
    begun = re.findall(r"\\begin\{(\w+)\}", text)
    assert begun == ["table", "tabular"] == re.findall(r"\\end\{(\w+)\}", text)[::-1]
    plain = re.sub(r"\\[\\{}%&$#_]", "", text)
    assert plain.count("{") == plain.count("}")
    body = text.split("\\toprule")[1].split("\\bottomrule")[0].replace("\\midrule\n", "")
    assert all(line.endswith("\\\\") for line in body.strip().splitlines())
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)&", line.strip().removesuffix("\\\\"))]
        for line in body.strip().splitlines()
    ]
    (columns,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert {len(row) for row in rows} == {len(columns)}
    return rows


def test_latex_table_has_accuracies_and_bold_cells_of_runs_tied_with_the_best(words):
    table = table_of(words)
    heading, weak, good, same = parse_latex(table.latex())
    assert heading == ["Run", "CB", "RTE"]
    for word, row in zip(words, (weak, good, same), strict=True):
        name, _, path = word.partition("=")
        (run,) = read_runs([path])
        rte = [task.accuracy for task in run.tasks if task.dataset == "super_glue/rte"]
        value = float(re.search(r"[\d.]+", row[2])[0])
        assert row[0] == name and value == pytest.approx(statistics.mean(rte), abs=0.0501)
        low, high = map(float, re.search(r"\[([\d.]+), ([\d.]+)\]", row[2]).groups())
        assert low < statistics.mean(rte) < high
    assert [r"\textbf{" in row[2] for row in (weak, good, same)] == [False, True, True]
    assert [r"\textbf{" in row[1] for row in (weak, good, same)] == [False, True, False]
    assert same[1] == "--"


def test_markdown_table_is_the_transposed_latex_table(words):
    text = table_of(words, transpose=True).markdown()
    heading, rule, *lines = text.split("\n\n")[0].splitlines()
    assert heading == "| Dataset | weak | good | same |" and rule.count("|") == 5
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in cells] == ["CB", "RTE"]
    by_latex = parse_latex(table_of(words).latex())
    strip = re.compile(r"\*\*|\\textbf|\\scriptsize|[{}]")
    for row, name in enumerate(("weak", "good", "same"), start=1):
        for column in (1, 2):
            latex, markdown = by_latex[row][column], cells[column - 1][row]
            assert by_latex[row][0] == name
            plain = strip.sub("", latex).replace("  ", " ").replace("--", "–")
            assert plain == strip.sub("", markdown)
            assert ("textbf" in latex) == ("**" in markdown)


def test_median_over_prompts_is_shown_with_quartiles(words):
    (run,) = read_runs([words[0].partition("=")[2]])
    rte = [task.accuracy for task in run.tasks if task.dataset == "super_glue/rte"]
    first, median, third = statistics.quantiles(rte, n=4, method="inclusive")
    table = table_of(words[:2], statistic="median")
    assert table.columns == ("Run", "Mean of 2 datasets", "CB", "RTE")
    (_, (mean, cb, cell)), _ = table.rows
    assert (cell.value, *cell.ends) == pytest.approx((median, first, third))
    assert mean.ends is None and mean.value == pytest.approx((median + cb.value) / 2)
    assert "median over prompts, with first and third quartiles" in table.caption


def test_caption_states_test_adjustment_prompts_and_examples(words):
    caption = table_of([f"two={words[0][5:]},{words[1][5:]}", words[2]]).caption
    for text in ("Accuracy (%), mean over prompts", "95 %", "t-test", "Benjamini and Hochberg"):
        assert text in caption
    assert "RTE: 4 and 80" in caption and "Seeds: two: 2." in caption


def test_names_are_escaped():
    assert escape_latex(HOSTILE) == (
        r"a\&b\_c\%\$\#\{x\}\textasciitilde{}\textasciicircum{}\textbackslash{}"
        r"\textless{}\textbar{}\textgreater{}-{}-{[}{*}{]}"
    )
    assert re.sub(r"\\(.)", r"\1", escape_markdown(HOSTILE)) == HOSTILE
    assert [escape("a\n\n| b") for escape in (escape_latex, escape_markdown)] == [
        r"a \textbar{} b",
        r"a \| b",
    ]
    assert not re.search(r"(?<!\\)[|*_<`\[]", escape_markdown(HOSTILE).replace(r"\\", ""))


def test_hostile_run_names_keep_the_structure_of_the_table(words):
    table = table_of([HOSTILE + words[0][4:], words[1]])
    rows = parse_latex(table.latex())
    assert rows[1][0] == escape_latex(HOSTILE)
    body = table.markdown().split("\n\n")[0].splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in body} == {5}


def test_report_command_writes_paper_tables(words, tmp_path, capsys):
    files = [tmp_path / "t.tex", tmp_path / "t.md"]
    flags = [f"--latex={files[0]}", f"--markdown={files[1]}", "--statistic=median", "--transpose"]
    assert cli.main(["report", *words, *flags]) == 0
    printed = capsys.readouterr().out
    assert all(f"{file}\n" in printed for file in files)
    assert parse_latex(files[0].read_text())[0] == ["Dataset", "weak", "good", "same"]
    assert files[1].read_text().startswith("| Dataset | weak | good | same |\n")


def test_report_command_refuses_tables_of_runs_that_cannot_be_compared(
    words, evaluation, tmp_path, capsys
):
    other = evaluation("other", split="test").add("r", "x", "p", random_lines(9, [2], 1))
    one = evaluation("one", split="train").add("r", "x", "p", random_lines(9, [2], 1))
    paths = [str(other.write()), str(one.write())]
    for runs, message in ((paths, "cannot be compared by 'split'"), (words[:1], "got one run")):
        with pytest.raises(SystemExit):
            cli.main(["report", *runs, f"--latex={tmp_path / 't.tex'}"])
        assert message in capsys.readouterr().err
    assert not (tmp_path / "t.tex").exists()
    for flag in ("--transpose", "--statistic=mean"):
        with pytest.raises(SystemExit):
            cli.main(["report", *words, flag])
        assert "is for the table of --latex and --markdown" in capsys.readouterr().err


def test_comparison_refuses_table_without_shared_examples(evaluation):
    words = [
        f"{name}={evaluation(name).add('r', name, 'p', random_lines(9, [2], 1)).write()}"
        for name in ("one", "two")
    ]
    with pytest.raises(UserError, match="share no example"):
        table_of(words)

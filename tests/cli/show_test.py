"""`t0 show`, `t0 lint` and `t0 tasks` over a user's own prompts: what they print, and refuse."""

import io
import json
import re
import subprocess
import sys

import pytest

from t0.cli import main as cli
from t0.testing import train_vocabulary, write_rows, write_templates

TASK = "reviews_good_or_bad"
LONG = "a film that goes on and on and never ends at all"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A folder with a vocabulary, and data/ with a dataset of two prompts and a mixture."""
    folder = tmp_path_factory.mktemp("own")
    reviews = folder / "data" / "reviews"
    choices = "bad ||| good"
    prompts = {
        "good or bad": ("{{text}} Good or bad? ||| {{answer_choices[label]}}", choices),
        "slipped": ("{{text}} ||| {{['Bad', 'Good'][label]}}", choices),
        "retell": ("{% if label %}Retell: {{text}} ||| {{text}}{% endif %}", None),
    }
    write_templates(reviews, prompts)
    texts = ["a fine film", LONG, "dull"]
    write_rows(reviews / "train.jsonl", [{"text": t, "label": i % 2} for i, t in enumerate(texts)])
    write_rows(reviews / "validation.jsonl", [{"text": "so so", "label": 1}])
    (folder / "data" / "mixtures.yaml").write_text(f"mine:\n  tasks: [{TASK}]\n")
    train_vocabulary(folder / "vocab.model", [*texts, "Good or bad? Retell: bad good"], size=300)
    return folder


@pytest.fixture
def t0(own, capsys, monkeypatch):
    """Runs `t0 WORDS`, by default over the own data; returns (status, output, errors)."""

    def run(*words, data=True):
        monkeypatch.delenv("T0_DATA_DIR", raising=False)
        try:
            status = cli.main([*words, *([f"--data_dir={own / 'data'}"] if data else [])])
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_show_row_without_vocabulary(t0):
    status, out, err = t0("show", TASK, "--rows=1")
    assert status == 0
    assert out == (
        f"{TASK}, split train, row 0\n"
        "  inputs\n    a fine film Good or bad?\n"
        "  target\n    bad\n"
        "  choices (* is the target)\n  * bad\n    good\n"
    )
    assert "tokens were not counted" in err
    assert "--vocab=FILE" in err


def test_show_prints_a_json_object_for_each_row(t0):
    status, out, _ = t0("show", TASK, "--rows=2", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and len(rows) == 2
    assert rows[0]["inputs"]["text"] == "a fine film Good or bad?"
    assert [choice["text"] for choice in rows[0]["choices"]] == ["bad", "good"]


def test_show_marks_truncation_at_the_token_limit(t0, own):
    import sentencepiece

    words = [f"--vocab={own / 'vocab.model'}", "--lengths=inputs=12,targets=9", "--row=1", "--ids"]
    status, out, err = t0("show", TASK, *words)
    assert status == 0
    model = sentencepiece.SentencePieceProcessor(model_file=str(own / "vocab.model"))
    text = f"{LONG} Good or bad?"
    ids = model.encode(text)
    before, mark, after = out.splitlines()[2].partition(
        "[CUT at 12 tokens; the model does not see what follows]"
    )
    assert mark
    assert before.strip() + after == text
    assert model.encode(before.strip()) == ids[:12]
    assert f"  inputs, {len(ids)} tokens of at most 12, {len(ids) - 12} too many\n" in out
    assert f"    ids {' '.join(map(str, ids))}\n" in out
    eos = [*model.encode("good"), 1]
    assert f"    ids {' '.join(map(str, eos))}\n" in out
    assert "1 of 1 rows are cut at inputs=12,targets=9" in err


def test_show_marks_truncated_eos_of_target(t0, own):
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(own / "vocab.model"))
    count = len(model.encode("bad"))
    words = [f"--vocab={own / 'vocab.model'}", f"--lengths=targets={count}", "--row=0"]
    _, out, _ = t0("show", TASK, *words)
    assert f"    bad[CUT at {count} tokens: EOS is lost]\n" in out


def test_show_notes_missing_choice_and_skipped_row(t0):
    assert "note: none of the choices is the target, not one" in t0("show", "reviews_slipped")[1]
    _, out, _ = t0("show", "reviews_retell", "--row=0")
    assert "note: the template leaves this row out" in out


def test_show_and_lint_note_unknown_tokens_and_truncation(t0, own, tmp_path):
    prompts = {
        "which": ("{{text}} ||| {{answer_choices[label]}}", "☂ ||| ☀ ||| good"),
        "retell": ("Retell ||| {{text}}", None),
    }
    write_templates(tmp_path / "faces", prompts)
    rows = [{"text": "a film " * 400, "label": 0}, {"text": "good", "label": 2}]
    write_rows(tmp_path / "faces" / "train.jsonl", rows)
    words = [f"--data_dir={tmp_path}", f"--vocab={own / 'vocab.model'}"]
    _, out, _ = t0("show", "faces_which", "--row=0", *words, data=False)
    assert "note: not in the vocabulary: '☂', '☀'; the model reads and writes unknown" in out
    assert "note: '☂' and '☀' have the same tokens" in out
    assert "note: texts of 2,800 characters are CUT at 2,048 characters" in out
    _, out, _ = t0("show", "faces_retell", "--row=1", *words, data=False)
    assert "note" not in out
    status, out, _ = t0("lint", "faces_.*", *words, data=False)
    assert status == 1  # the right choice of a row has the tokens of a wrong one
    verdicts = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert "unknown tokens: not in the vocabulary: '☂'" in verdicts["faces_which"]
    assert "wrong one's tokens: 1 of 2 rows" in verdicts["faces_which"]
    assert "wrong one's tokens" not in verdicts["faces_retell"]


def test_show_writes_a_page_of_all_matching_prompts(t0, own, tmp_path):
    page = tmp_path / "rows.html"
    words = [f"--html={page}", f"--vocab={own / 'vocab.model'}", "--lengths=inputs=12"]
    status, out, err = t0("show", "reviews_.*", *words)
    assert (status, out, err) == (0, f"{page} (0.0 MB)\n", "")
    html = page.read_text()
    assert html.count('type="radio"') == 3 and html.count("<article") == 9  # more than three rows
    assert "CUT at 12 tokens" in html and "\u2581film" in html
    status, _, err = t0("show", "mine", f"--html={page}", "--rows=1")
    assert (status, page.read_text().count("<article")) == (0, 1)
    assert "tokens were not counted" in err
    status, _, err = t0("show", TASK, f"--html={tmp_path}")
    assert status == 2 and str(tmp_path) in err


def test_show_all_prompts_split_and_task_expression(t0):
    _, out, _ = t0("show", TASK, "--all_prompts", "--split=validation")
    titles = [line for line in out.splitlines() if ", split" in line]
    names = (TASK, "reviews_retell", "reviews_slipped")
    assert titles == [f"{name}, split validation, row 0" for name in names]
    _, out, _ = t0("show", "reviews_good.*_score_eval", "--rows=1")
    assert out.startswith(f"{TASK}, split train, row 0")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["reviews_good_or_bat"], ["unknown task or mixture", "'reviews_good_or_bad'"]),
        (["reviews_.*"], ["matches 3 tasks: reviews_good_or_bad, ", "--all_prompts"]),
        ([TASK, "--split=dev"], ["no split 'dev', it has: train, validation"]),
        ([TASK, "--row=9"], ["train.jsonl has no row 9: it has 3, counted from 0"]),
        ([TASK, "--rows=0"], ["--rows is 0; expected a whole number from 1"]),
        ([TASK, "--lengths=input=5"], ["'input=5' is not a length", "inputs=1024,targets=256"]),
        ([TASK, "--lengths=inputs=many"], ["'inputs=many' is not a length"]),
        ([TASK, "--json", "--html=x.html"], ["--html and --json both say"]),
        ([TASK, "--ids"], ["--ids needs a vocabulary"]),
        ([TASK, "--vocab=/no/such.model"], ["vocabulary not found: /no/such.model"]),
    ],
)
def test_show_user_error_is_one_line(t0, words, parts):
    status, out, err = t0("show", *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


def test_show_invalid_vocabulary_is_refused(t0, tmp_path):
    (tmp_path / "x.model").write_text("not a model")
    status, _, err = t0("show", TASK, f"--vocab={tmp_path / 'x.model'}")
    assert status == 2
    assert "x.model is not a SentencePiece model" in err


def test_lint_reports_no_faults_and_uncounted_tokens(t0, own):
    status, out, err = t0("lint", TASK)
    header, row, _ = out.splitlines()
    assert (status, row.split()) == (0, [TASK, "train", "3", "no", "ok"])
    assert header.split() == ["task", "split", "rows", "random", "verdict"]  # no check found a row
    assert "at most 200 rows of each (--rows). Tokens were not counted" in err
    status, out, err = t0("lint", TASK, f"--vocab={own / 'vocab.model'}")
    assert status == 0 and "not counted" not in err


def test_lint_refuses_a_metric_with_an_unknown_name(t0, tmp_path):
    prompts = {"which": ("{{text}} ||| {{answer_choices[label]}}", "bad ||| good")}
    write_templates(tmp_path / "films", prompts)
    templates = tmp_path / "films" / "templates.yaml"
    templates.write_text(templates.read_text().replace("- Accuracy", "- Rougge"))
    write_rows(tmp_path / "films" / "train.jsonl", [{"text": "fine", "label": 1}])
    status, out, _ = t0("lint", "films_.*", f"--data_dir={tmp_path}", data=False)
    assert status == 1 and "unknown metric: 'Rougge', expected ROUGE" in out


def test_lint_finds_a_target_that_is_no_choice(t0):
    status, out, _ = t0("lint", "reviews_slipped", "--json")
    assert status == 1
    train, _ = json.loads(out)["splits"]
    assert train["faults"] == {"no correct choice": "3 of 3 rows, the first is row 0"}
    status, out, _ = t0("lint", "reviews_slipped", "--max_share=1")
    assert status == 0
    assert "100%" in out
    assert t0("lint", "reviews_slipt")[0] == 2


LETTERS = """
import seqio
import tensorflow as tf

def rows(split, shuffle_files, seed=None):
    return tf.data.Dataset.from_tensor_slices({"inputs": ["abc"], "targets": ["d"]})

features = {name: seqio.Feature(seqio.ByteVocabulary()) for name in ("inputs", "targets")}
seqio.TaskRegistry.add(
    "letters_to_show", seqio.FunctionDataSource(rows, ["train"]), output_features=features,
    preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
)
"""


def test_show_task_of_a_user_module(t0, tmp_path, monkeypatch, clean_registries):
    (tmp_path / "letters_module.py").write_text(LETTERS)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["letters_to_show", "--module_import=letters_module", "--rows=1"]
    status, out, err = t0("show", *words, "--lengths=inputs=2", data=False)
    assert status == 0, err
    assert "  inputs, 2 tokens of at most 2\n    ab\n" in out
    assert "inputs fill their length: the rest may be cut off" in out
    page = tmp_path / "rows.html"
    _, _, err = t0("show", *words[:2], f"--html={page}", data=False)
    assert "not counted" not in err
    assert "100 101 102 1</details>" in page.read_text()
    assert "unknown tokens" not in out


def test_show_unknown_tokens_of_a_user_module_task(
    t0, own, tmp_path, monkeypatch, clean_registries
):
    vocabulary = f"seqio.SentencePieceVocabulary({str(own / 'vocab.model')!r})"
    module = LETTERS.replace("seqio.ByteVocabulary()", vocabulary)
    assert module != LETTERS
    (tmp_path / "marks_module.py").write_text(module.replace('"d"', '"good ☂"'))
    monkeypatch.syspath_prepend(tmp_path)
    words = ["letters_to_show", "--module_import=marks_module", "--rows=1"]
    _, out, _ = t0("show", *words, data=False)
    assert "note: the target has 1 unknown token, because" in out


def test_tasks_command_lists_user_mixture(t0):
    status, out, err = t0("tasks", "mine")
    assert (status, err) == (0, "1 task\n")
    assert out.splitlines()[1].split() == [TASK, *["train", "3,", "validation", "1", "3", "-"]]


def test_tasks_command_shows_cached_tasks(t0, tmp_path):
    (tmp_path / TASK).mkdir()
    (tmp_path / TASK / "COMPLETED").write_text("")
    (tmp_path / TASK / "stats.train.json").write_text('{"examples": 2}')
    _, out, _ = t0("tasks", "mine", f"--cache_dirs={tmp_path}", "--json")
    (row,) = json.loads(out)
    assert (row["cached"], row["rate"]) == (str(tmp_path / TASK), 2.0)


def test_task_catalogue_is_read_without_tensorflow(own):
    code = (
        "import sys\nfrom t0.cli.main import main\n"
        "for words in map(str.split, sys.argv[1:]):\n  assert main(words) == 0, words\n"
        "assert not {'tensorflow', 'gin', 'seqio', 'pandas'} & set(sys.modules)"
    )
    data = f"--data_dir={own / 'data'}"
    lines = ["tasks", "tasks t0_train", f"tasks mine {data}"]
    lines += [f"show {TASK} {data} --vocab={own / 'vocab.model'}", f"lint {TASK} {data}"]
    done = subprocess.run([sys.executable, "-c", code, *lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_show_output_that_is_not_utf8_gets_escapes(tmp_path, monkeypatch):
    folder = tmp_path / "teas"
    write_templates(folder, {"a": ("{{text}} ||| {{answer_choices[label]}}", "mild ||| caf\u00e9")})
    (folder / "train.csv").write_text("text,label\n\u8336 caf\u00e9,1\n", encoding="utf-8")
    printed = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr(sys, "stdout", printed)
    assert cli.main(["show", "teas_a", f"--data_dir={tmp_path}"]) == 0
    text = printed.buffer.getvalue().decode("latin-1")
    assert "    \\u8336 caf\u00e9\n" in text
    assert "* caf\u00e9\n" in text


def test_show_csv_cells_as_in_the_file(tmp_path, capsys):
    folder = tmp_path / "shop"
    names = ("zip", "price", "code", "long", "count", "share")
    jinja = " ".join(f"{name}={{{{{name}}}}}" for name in names)
    write_templates(folder, {"a": (f"{jinja} ||| {{{{answer_choices[label]}}}}", "no ||| yes")})
    cells = ("00420", "1.10", "2e3", "31415926535897932384626", "7", "0.25")
    for ending, mark in (("csv", ","), ("tsv", "\t"), ("csv", ";")):
        for path in folder.glob("train.*"):
            path.unlink()
        lines = [mark.join([*names, "label"]), mark.join([*cells, "1"])]
        (folder / f"train.{ending}").write_text("\n".join(lines) + "\n")
        assert cli.main(["show", "shop_a", f"--data_dir={tmp_path}"]) == 0
        shown = capsys.readouterr().out
        assert " ".join(f"{n}={c}" for n, c in zip(names, cells, strict=True)) + "\n" in shown
        assert "* yes" in shown


def test_show_few_shot_prompt(t0, own):
    words = ["show", TASK, "--split=validation", "--num_fewshot=3"]
    status, out, _ = t0(*words, f"--vocab={own / 'vocab.model'}")
    assert status == 0
    for text, answer in (("a fine film", "bad"), (LONG, "good"), ("dull", "bad")):
        assert f"    {text} Good or bad?\n    \n    {answer}\n    \n    \n" in out
    assert "    so so Good or bad?\n    \n    \n  target" in out
    assert re.search(r"note: 3 exemplars, rows [012], [012], [012] of 'train' \(seed 0\)", out)
    assert "note: x_y_delimiter and example_separator: the vocabulary has no token" in out
    options = '{"x_y_delimiter": " = ", "example_separator": " ## ", "seed": 4}'
    status, out, _ = t0(*words, f"--fewshot_options={options}", f"--vocab={own / 'vocab.model'}")
    assert "(seed 4)" in out
    # The vocabulary has no token for these separators.
    marked = r"dull Good or bad\? \[UNKNOWN =\] bad \[UNKNOWN ##\] "
    assert re.search(marked, " ".join(out.split()))
    assert "has no token" not in out


def test_show_few_shot_task_of_a_mixture(t0, tmp_path):
    prompts = {"a": ("{{tea}}? ||| {{answer_choices[label]}}", "no ||| yes")}
    write_templates(tmp_path / "teas", prompts)
    rows = [{"tea": f"tea {n}", "label": 1} for n in range(4)]
    write_rows(tmp_path / "teas" / "train.jsonl", rows)
    mixture = "m: {tasks: [teas_a_2shot], few_shot: {of: [teas_a], k: 2}}"
    (tmp_path / "mixtures.yaml").write_text(mixture)
    words = ["show", "teas_a_2shot", "--row=0", f"--data_dir={tmp_path}"]
    status, out, _ = t0(*words, data=False)
    assert status == 0
    assert out.count("?\n    \n    yes\n    \n    \n") == 2
    assert "note: 2 exemplars, rows" in out
    ordered = mixture.replace("k: 2", "k: 2, order: seqio")
    (tmp_path / "mixtures.yaml").write_text(ordered)
    status, out, _ = t0(*words, data=False)
    assert status == 0
    assert "note: 2 exemplars, rows" in out
    _, _, errors = t0(*words, "--num_fewshot=1", data=False)
    assert "teas_a_2shot is few-shot already. Leave the flag out" in errors


def test_show_few_shot_prompt_within_the_length(t0, own):
    words = [
        "show",
        TASK,
        "--split=validation",
        "--num_fewshot=3",
        f"--vocab={own / 'vocab.model'}",
    ]
    _, out, _ = t0(*words)
    tokens = int(re.search(r"inputs, (\d+) tokens", out)[1])
    _, out, _ = t0(*words, f"--lengths=inputs={tokens - 1}")
    assert "note: 2 exemplars of 3 that were drawn, rows" in out
    assert "CUT" not in out
    _, out, _ = t0(*words, "--lengths=inputs=12")
    assert "note: 0 exemplars of 3 that were drawn (seed 0)" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num_fewshot=0"], "--num_fewshot is 0; expected a whole number from 1"),
        (["--num_fewshot=4"], "4 exemplars, but its split 'train' has only 3 rows"),
        (["--fewshot_options={}"], 'expected an object, such as {"seed": 1}, and --num_fewshot=K'),
        (["--num_fewshot=1", "--fewshot_options=seed"], "--fewshot_options is not JSON"),
        (["--num_fewshot=1", '--fewshot_options={"split": "test"}'], "has no split 'test'"),
    ],
)
def test_show_refuses_few_shot_settings(t0, words, message):
    status, out, err = t0("show", TASK, *words)
    assert (status, out) == (2, "")
    assert message in err

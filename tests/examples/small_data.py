"""A folder laid out as the examples want DATA, with a few made-up rows for each of them."""

import json
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
from tests.sources import tiny_recipes  # noqa: E402

TICKETS = ROOT / "examples" / "own_prompts" / "data"


def lay_out(folder):
    """Writes text/, sni/, qa/squad/, mt/, T0's datasets and the vocabulary into `folder`."""
    write = tiny_recipes.write_lines
    tiny_recipes.lay_out_sni(folder / "sni")
    for split in ("train", "validation"):
        texts = _texts(split)
        write(folder / "text" / f"{split}.jsonl", [{"text": " ".join(texts)}] * 4)
        questions = [{**tiny_recipes.SQUAD_ROW, "id": f"q{number}"} for number in range(250)]
        write(folder / "qa" / "squad" / f"{split}.jsonl", questions)
    write(folder / "mt" / "train.jsonl", [*tiny_recipes.PAIRS] * 1000)
    reviews = [{"text": text, "label": number % 2} for number, text in enumerate(_texts("train"))]
    for split in ("train", "test"):
        write(folder / "rotten_tomatoes" / "default" / f"{split}.jsonl", reviews[:40])
        questions = [
            {"text": text, "label-coarse": number % 6, "label-fine": number % 47}
            for number, text in enumerate(_texts("train")[:40])
        ]
        write(folder / "trec" / "default" / f"{split}.jsonl", questions)
    news = [{"text": text, "label": number % 4} for number, text in enumerate(_texts("train")[:20])]
    write(folder / "ag_news" / "default" / "test.jsonl", news)
    shutil.copy(TICKETS / "tickets.model", folder / "t5.spiece.model")


def lay_out_quickstart(folder):
    """Writes the vocabulary and the trained datasets of `bin/quickstart`, with made-up rows."""
    from t0.cli import quickstart

    for split in ("train", "validation"):
        rows = [_quickstart_rows(number, text) for number, text in enumerate(_texts(split)[:40])]
        for name in rows[0]:
            path = folder / "data" / name / f"{split}.jsonl"
            tiny_recipes.write_lines(path, [row[name] for row in rows])
    (folder / "data" / "mixtures.yaml").write_text(quickstart.MIXTURES, encoding="utf-8")
    (folder / "vocabulary").mkdir()
    shutil.copy(TICKETS / "tickets.model", folder / "vocabulary" / "mini.model")


def _quickstart_rows(number, text):
    """Dataset -> a row."""
    a, b, c, d = (f"{text[:9]} {part}" for part in range(4))
    wrong = {"distractor1": b, "distractor2": c, "distractor3": d}
    choices = {"text": [a, b, c, d], "label": [*"ABCD"]}
    question = ("How would they feel?", "How would you describe them?")[number % 2]
    answers = {"answerA": a, "answerB": b, "answerC": c, "label": "1", "question": question}
    return {
        "sciq/default": {"question": text, "correct_answer": a, "support": text, **wrong},
        "openbookqa/main": {"question_stem": text, "answerKey": "B", "choices": choices},
        "glue/mrpc": {"sentence1": text, "sentence2": text, "label": number % 2},
        "social_i_qa/default": {"context": text, **answers},
    }


def _texts(split):
    lines = (TICKETS / "tickets" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]

"""Writes the table of benchmarks/README.md from benchmarks/history.jsonl.

    .venv/bin/python benchmarks/summary.py            # rewrite the table
    .venv/bin/python benchmarks/summary.py --check    # exit with 1 if the table is out of date

A row shows the claim's newest run on a machine with AVX-512 BF16, or on any machine if there is
none. A run that missed a goal is also shown. The ratio is above 1 if ours is better.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
README, HISTORY = FOLDER / "README.md", FOLDER / "history.jsonl"
BEGIN, END = "<!-- table: written by summary.py -->\n", "<!-- end of table -->\n"


class Figure(NamedTuple):
    """A row of the table and the cells of a benchmark's output that it shows.

    Attributes:
      claim: the benchmark's name in run.py.
      what: the quantity, with its unit.
      ours, peer: the (row, column) of the two cells; `peer` is None if no other program does this.
      peer_name: the name of the other program.
      less_is_better: whether the quantity is a time or a size.
    """

    claim: str
    what: str
    ours: tuple[str, str]
    peer: tuple[str, str] | None = None
    peer_name: str = ""
    less_is_better: bool = False


_HF = "Transformers"
FIGURES = (
    Figure("importing", "import T0's tasks, s", ("`t0.seqio_tasks`", "wall, median s"),
           ("`t5.data`", "wall, median s"), "`import t5.data`", True),
    Figure("starting", "first training step, processor s", ("t5_mesh_transformer", "processor s"),
           ("T5's own command", "processor s"), "T5's command", True),
    Figure("training", "train t5.1.1.small, bfloat16, s/step",
           ("ours, as it starts by itself", "s/step"), ("Mesh TensorFlow, stock", "s/step"),
           "Mesh TensorFlow", True),
    Figure("training", "train t5.1.1.small, bfloat16, s/step",
           ("ours, as it starts by itself", "s/step"),
           ("Transformers, bfloat16 autocast", "s/step"), _HF, True),
    Figure("training_bands",
           "largest difference between our float32 loss curve and our bfloat16 curve (ours), or "
           "our float32 curve with another seed (peer)",
           ("bfloat16", "largest difference"), ("float32, another seed", "largest difference"),
           "float32, another seed", True),
    Figure("training_torch", "train with PyTorch, bfloat16, s/step", ("ours, bfloat16", "s/step"),
           ("Transformers, plain loop, bfloat16", "s/step"), _HF, True),
    Figure("training_torch", "train with PyTorch on prompted data, useful tokens/s",
           ("ours, packed, bfloat16", "useful tokens/s"),
           ("Transformers, padded, bfloat16", "useful tokens/s"), _HF),
    Figure("scoring", "rank RTE, float32, choices/s", ("rte, ours, float32", "choices/s"),
           ("rte, mesh, float32", "choices/s"), "Mesh TensorFlow"),
    Figure("scoring", "rank RTE, bfloat16, choices/s", ("rte, ours, bfloat16", "choices/s"),
           ("rte, hf, bfloat16", "choices/s"), _HF),
    Figure("scoring", "rank CB, bfloat16, choices/s", ("cb, ours, bfloat16", "choices/s"),
           ("cb, hf, bfloat16", "choices/s"), _HF),
    Figure("scoring", "rank HellaSwag, bfloat16, choices/s",
           ("hellaswag, ours, bfloat16", "choices/s"), ("hellaswag, hf, bfloat16", "choices/s"),
           _HF),
    Figure("inference", "decode greedily, float32, tokens/s", ("float32, ours", "tokens/s"),
           ("float32, hf", "tokens/s"), _HF),
    Figure("inference", "decode greedily, bfloat16, tokens/s", ("bfloat16, ours", "tokens/s"),
           ("bfloat16, hf", "tokens/s"), _HF),
    Figure("caching", "cache 22 tasks, records/s", ("ours, 2 workers", "records/s"),
           ("stock SeqIO", "records/s"), "SeqIO"),
    Figure("caching_everything", "cache all tasks with data, processor s",
           ("ours, 2 workers", "processor s"), ("tokenizer alone", "processor s"),
           "SentencePiece alone", True),
    Figure("few_shot_caching", "cache 4-shot RTE, ns per token", ("4-shot", "ns per token"),
           ("zero-shot", "ns per token"), "zero-shot", True),
    Figure("caching_scale", "cache 747,000 records with two workers, records/s",
           ("prompts", "records/s")),
    Figure("feeding", "feed packed batches, examples/s", ("ours", "examples/s"),
           ("T5, stock", "examples/s"), "T5"),
    Figure("pretraining_feed", "feed span corruption, tokens/s", ("ours", "tokens/s"),
           ("T5, stock", "tokens/s"), "T5"),
    Figure("live_feeding", "make batches of span corruption in a worker process, tokens/s",
           ("worker process", "tokens/s"), ("in the training process", "tokens/s"),
           "no worker process"),
    Figure("converting", "convert a checkpoint, MB/s", ("mtf -> hf", "MB/s"),
           ("mtf -> hf", "copy MB/s"), "`cp`"),
    Figure("planning", "plan T0's training on a v3-512 (`t0 plan`), s",
           ("train v3-512", "clock s")),
    Figure("buckets", "cache tasks to a bucket, requests per task",
           ("requests for a task cached", "measured")),
    Figure("overlap", "search training texts, texts per processor s",
           ("t0 overlap", "texts/s of the processor"), ("sets", "texts/s of the processor"),
           "sets of n-grams"),
    Figure("growth",
           "growth of caching: time per added row from 10x to 100x the rows, relative to the time "
           "per added row from 1x to 10x (1 = linear growth)",
           ("caching, records", "last beside first")),
)  # fmt: skip


def read_history(path: Path = HISTORY) -> dict[str, dict[str, Any]]:
    """Returns each claim's newest record with figures, with AVX-512 BF16 if there is one."""
    newest: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        best = newest.get(record["claim"])
        if record["cells"] and (best is None or has_bfloat16(record) >= has_bfloat16(best)):
            newest[record["claim"]] = record
    return newest


def has_bfloat16(record: dict[str, Any]) -> bool:
    """Returns whether a record was made on a machine with AVX-512 BF16."""
    return "avx512_bf16" in record["machine"]["instruction_sets"]


def _cell(record: dict[str, Any], location: tuple[str, str]) -> str:
    """Returns the last cell of that row and column, or ""."""
    values = [value for row, column, value in record["cells"] if (row, column) == location]
    return values[-1] if values else ""


def ratio(figure: Figure, record: dict[str, Any]) -> float | None:
    """Returns ours relative to the peer, above 1 if ours is better; None without both cells."""
    cells = [_cell(record, key) if key else "" for key in (figure.ours, figure.peer)]
    if not all(cells):
        return None
    ours, peer = map(_number, cells)
    return peer / ours if figure.less_is_better else ours / peer


def _number(cell: str) -> float:
    return float(re.match(r"[\d.]+", cell.replace(",", "")).group())


def _machine(record: dict[str, Any]) -> str:
    machine = record["machine"]
    name = re.sub(r"\(R\)| Processor", "", machine["processor"])
    sets = [name for name in machine["instruction_sets"] if name != "avx2"] or ["avx2"]
    rates = machine["product_gflops"]
    sets = [name.upper().replace("_", " ") for name in sets]
    return (
        f"{machine['cores']}-core {name}, {' and '.join(sets)}, one large matrix product: "
        f"{rates['float32']} GFLOP/s in float32, {rates['bfloat16']} in bfloat16"
    )


def render(history: dict[str, dict[str, Any]]) -> str:
    """Returns the Markdown table of all figures, and the list of its machines."""
    machines: dict[tuple, tuple[str, str]] = {}
    rows = list(_rows(history, machines))
    header = ["quantity", "ours", "peer", "ratio", "machine", "date", "commit", "program"]
    lines = [header, ["---"] * len(header), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return table + "\n" + "".join(f"- {key}: {text}\n" for key, text in machines.values())


def _rows(
    history: dict[str, dict[str, Any]], machines: dict[tuple, tuple[str, str]]
) -> Iterator[list[str]]:
    for figure in FIGURES:
        record = history.get(figure.claim)
        ours = _cell(record, figure.ours) if record else ""
        if not ours:
            continue
        peer = _cell(record, figure.peer) if figure.peer else ""
        value = ratio(figure, record)
        described = record["machine"]
        key = (*described.get("family", ()), *described["instruction_sets"])
        letter, _ = machines.setdefault(key, (chr(ord("A") + len(machines)), _machine(record)))
        shown = f"{peer} ({figure.peer_name})" if peer else "none"
        yield [
            figure.what, ours, shown, f"{value:.3g}" if value else "", letter, record["date"],
            record["commit"], f"`{figure.claim}`",
        ]  # fmt: skip


def rewrite(text: str, table: str) -> str:
    """Returns the README's text with the table between its two marks replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        sys.exit(f"{README} has no lines {BEGIN.strip()} and {END.strip()} around its table")
    return before + BEGIN + table + END + after


def main() -> None:
    """Rewrites the table, or checks it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    text = README.read_text()
    new = rewrite(text, render(read_history()))
    if parser.parse_args().check:
        sys.exit(f"{README} is out of date; run benchmarks/summary.py" if new != text else 0)
    README.write_text(new)


if __name__ == "__main__":
    main()

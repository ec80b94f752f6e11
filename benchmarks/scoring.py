"""Compares rank evaluation with Mesh TensorFlow and Hugging Face Transformers, in one session.

    .venv/bin/python benchmarks/scoring.py --data=DIR --vocab=spiece.model \
      --hf_python=/venvs/hf/bin/python

A T5.1.1 small with random weights scores the prompts of RTE, CB and HellaSwag, read from local
folders (`DIR/super_glue/rte` ...). The scorers take turns in each round. Each runs in its own
process, which has loaded and warmed up before and sleeps while another one works. All use the same
number of threads. Ratios are of medians over the rounds, so that other load on the machine affects
all scorers.

- ours: the scoring of `score_eval`. The table has the choices per second without the lowering of
  the batch shapes, and with it, as in a run of this many examples.
- mesh: Mesh TensorFlow's scoring, with every choice padded to 1024 + 256 tokens, on a few batches.
  `t0.compat` fixes a crash at the end of this scoring. The measured program is the one that Mesh
  TensorFlow runs.
- hf: `T5ForConditionalGeneration`, one forward pass per choice, in batches of choices that are
  sorted by length and padded to the longest; bfloat16 with autocast. It needs a Python with torch
  and transformers (torch==2.13.0), which this project's environment does not have. Without
  --hf_python it is left out.

FLOPs are counted without padding, with one encoding per example. They are shown next to the rate of
large matrix products in the same process, in the types of the computation (our logits are float32).
On a shared machine the ratio of processor time varies less.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from workers import ask, types, worker

ROOT = Path(__file__).resolve().parents[1]
AIMS = {("mesh", "rte"): 40, ("mesh", "cb"): 40, ("mesh", "hellaswag"): 20}
HF_AIMS = {"float32": 2.5, "bfloat16": 2.2}
DATASETS = {
    "rte": "super_glue_rte_.*_score_eval",
    "cb": "super_glue_cb_.*_score_eval",
    "hellaswag": "hellaswag_.*_score_eval",
}


def median(answers: list[dict[str, float]], key: str) -> float:
    """Returns the median of a measurement over the rounds."""
    return statistics.median(answer[key] for answer in answers)


def table(measurements: dict[tuple[str, str, str], list[dict[str, float]]]) -> str:
    """Returns the measurements as a Markdown table."""
    lines = [
        "| dataset | scorer | type | choices/s | with lowering | ours is faster by "
        "| by processor time | aim | GFLOP/s | of large products |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (dataset, scorer, dtype), answers in measurements.items():
        speed = median(answers, "choices_per_second")
        ours = median(measurements[dataset, "ours", dtype], "choices_per_second")
        aim = AIMS.get((scorer, dataset)) or (HF_AIMS[dtype] if scorer == "hf" else "")
        ratio = f"{ours / speed:.2f}" if scorer != "ours" else ""
        share = median(measurements[dataset, "ours", dtype], "per_processor_second")
        share /= median(answers, "per_processor_second")
        processor = f"{share:.2f}" if scorer != "ours" else ""
        whole = f"{median(answers, 'with_lowering'):.1f}" if "with_lowering" in answers[0] else ""
        lines.append(
            f"| {dataset} | {scorer} | {dtype} | {speed:.1f} | {whole} | {ratio} | {processor} "
            f"| {aim} | {median(answers, 'gflops'):.0f} | {median(answers, 'ceiling'):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder of dataset folders")
    parser.add_argument("--vocab", required=True, help="T5's SentencePiece model")
    parser.add_argument("--hf_python", help="a Python that has torch and transformers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=300, help="of each prompt (default: 300)")
    parser.add_argument("--mesh_batches", type=int, default=3, help="of 8 choices (default: 3)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--types", nargs="+", default=types())
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(table(measure(arguments, Path(folder))))
    print("\nMedians of", arguments.rounds, "rounds;", arguments.threads, "threads each.")


def measure(
    arguments: argparse.Namespace, folder: Path
) -> dict[tuple[str, str, str], list[dict[str, float]]]:
    """Returns (dataset, scorer, type) -> a measurement for each round."""
    programs = Path(__file__).parent
    common = [str(arguments.threads), str(folder)]
    ours = [sys.executable, str(programs / "scoring_tensorflow.py"), *common]
    ours += [arguments.data, arguments.vocab]
    commands = {"ours": ours, "mesh": ours}
    if arguments.hf_python:
        commands["hf"] = [arguments.hf_python, str(programs / "scoring_transformers.py"), *common]
    measurements: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for dataset in arguments.datasets:
        for dtype in arguments.types:
            workers = {}
            for scorer, command in commands.items():
                if scorer == "mesh" and dtype != "float32":
                    continue
                workers[scorer] = worker(command, arguments.threads)
                question = {
                    "scorer": scorer,
                    "dataset": dataset,
                    "tasks": DATASETS[dataset],
                    "dtype": dtype,
                    "examples": arguments.examples,
                    "mesh_batches": arguments.mesh_batches,
                }
                ask(workers[scorer], question)  # reads, loads and warms up
            for number in range(arguments.rounds):
                for scorer, process in workers.items():
                    answer = ask(process, {})
                    measurements.setdefault((dataset, scorer, dtype), []).append(answer)
                    _complete(answer, measurements[dataset, "ours", dtype][0])
                    print(number, dataset, scorer, dtype, answer, file=sys.stderr)
            for process in workers.values():
                process.stdin.close()
                process.wait()
    return measurements


def _complete(answer: dict[str, float], ours: dict[str, float]) -> None:
    """Adds the rate at which the other scorers do the same useful FLOPs."""
    answer["gflops"] = answer["choices_per_second"] * ours["flop_per_choice"] / 1e9


if __name__ == "__main__":
    main()

"""Rank evaluation beside Mesh TensorFlow's own and Hugging Face Transformers', in one session.

    .venv/bin/python benchmarks/scoring.py --data=DIR --vocab=spiece.model \
      --hf_python=/venvs/hf/bin/python

A T5.1.1 small with random weights scores the prompts of RTE, CB and HellaSwag, read from local
folders (`DIR/super_glue/rte` ...). The scorers take turns, round after round, each in a process of
its own that has loaded and warmed up beforehand and sleeps while another works, on the same number
of threads; ratios are of medians over the rounds, so that what else the machine does falls on all.

- ours: what `score_eval` does. Choices per second of scoring; and again with the lowering of its
  batch shapes counted, as a run of this many examples has it.
- mesh: Mesh TensorFlow's scoring, every choice padded to 1024 + 256 tokens, on a few batches. Its
  crash at the end is mended by `t0.compat`; what is measured is the program that it runs.
- hf: `T5ForConditionalGeneration`, one forward for each choice, batches of choices sorted by length
  and padded to their longest; bfloat16 under autocast. Needs a Python with torch and transformers
  (torch==2.13.0), which this project's own environment lacks: without --hf_python it is left out.

Arithmetic is counted without padding, one encoding for each example, and shown beside the rate of
large matrix products in the same process, of the types in which it is computed (ours has logits in
float32). On a machine that others use, too, the ratio of processor time is the steadier one.
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
    """Adds the rate at which the others do the same useful arithmetic."""
    answer["gflops"] = answer["choices_per_second"] * ours["flop_per_choice"] / 1e9


if __name__ == "__main__":
    main()

"""Compares decoding with Mesh TensorFlow and Hugging Face Transformers' `generate`, in one session.

    .venv/bin/python benchmarks/inference.py --hf_python=/venvs/hf/bin/python

A T5.1.1 small with random weights predicts 64 tokens for each of 32 inputs of 128 tokens, greedily.
The sides take turns in each round. Each runs in its own process, which has loaded and warmed up
before and sleeps while another one works. All use the same number of threads. Ratios are of medians
over the rounds, so that other load on the machine affects all sides. EOS is never predicted, so
that all predict the same number of tokens. Times include the encoder.

- ours: the decoding of mode `infer`, which also adds up the log-probabilities of the predictions.
- torch: the same on our PyTorch engine.
- mesh: `Bitransformer.decode`, with embeddings gathered like ours.
- hf: `T5ForConditionalGeneration.generate` with its defaults, weights converted to the type.

The side "hf" needs a Python with torch and transformers (torch==2.13.0, transformers==5.23.0),
which this project's environment does not have. The side "torch" also needs this project's packages
in that Python. Without --hf_python both are left out.

On a shared machine the ratio of processor time varies less.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

from workers import ask, types, worker

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).parent
# The goal for greedy decoding: our rate divided by Hugging Face's.
AIM = 1.5


def measure(arguments: argparse.Namespace, dtype: str) -> dict[str, list[dict[str, float]]]:
    """Returns side -> a measurement for each round."""
    threads = str(arguments.threads)
    ours = [sys.executable, str(HERE / "inference_tensorflow.py"), threads]
    commands = {"ours": ours, "mesh": ours}
    if arguments.hf_python:
        for side, program in (("torch", "inference_torch.py"), ("hf", "inference_transformers.py")):
            commands[side] = [arguments.hf_python, str(HERE / program), threads]
    names = ("batch", "inputs", "targets", "beams")
    question = {"dtype": dtype, **{name: getattr(arguments, name) for name in names}}
    workers = {side: worker(command, arguments.threads) for side, command in commands.items()}
    for side, process in workers.items():
        ask(process, {"side": side, **question})  # loads and warms up
    measurements: dict[str, list[dict[str, float]]] = {side: [] for side in workers}
    for number in range(arguments.rounds):
        for side, process in workers.items():
            measurements[side].append(ask(process, {}))
            print(number, dtype, side, measurements[side][-1], file=sys.stderr)
    for process in workers.values():
        process.stdin.close()
        process.wait()
    return measurements


def rows(dtype: str, measurements: dict[str, list[dict[str, float]]]) -> list[str]:
    """Returns the Markdown table's rows of a type."""

    def median(side: str, name: str) -> float:
        return statistics.median(answer[name] for answer in measurements[side])

    lines = []
    for side in measurements:
        speed, share = (median(side, n) for n in ("tokens_per_second", "per_processor_second"))
        ratios = ["", ""]
        if side != "ours":
            ratios = [
                f"{median('ours', name) / median(side, name):.2f}"
                for name in ("tokens_per_second", "per_processor_second")
            ]
        aim = f"{AIM}" if side == "hf" else ""
        cells = (dtype, side, f"{speed:,.0f}", ratios[0], f"{share:,.0f}", ratios[1], aim)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hf_python", help="a Python that has torch and transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="inputs decoded at once")
    parser.add_argument("--inputs", type=int, default=128, help="tokens of an input")
    parser.add_argument("--targets", type=int, default=64, help="tokens to predict")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--types", nargs="+", default=types())
    arguments = parser.parse_args()
    lines = [
        "| type | side | tokens/s | ours is faster by | tokens per processor second "
        "| by processor time | aim |",
        "|---|---|---|---|---|---|---|",
    ]
    for dtype in arguments.types:
        lines += rows(dtype, measure(arguments, dtype))
    print("\n".join(lines))
    print("\nMedians of", arguments.rounds, "rounds;", arguments.threads, "threads each.")


if __name__ == "__main__":
    main()

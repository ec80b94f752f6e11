"""Measures how much faster decoder-only models rank if each input is computed once.

    python benchmarks/ranking_decoders.py                       # GPT-2 of 12 layers, on two cores
    python benchmarks/ranking_decoders.py --layers=2 --examples=8 --rounds=1

A random GPT-2 ranks random ids. The two workloads have as many choices and about as many tokens as
RTE (2 choices) and a task with answers of a few words (4 choices). Ours keeps the keys and values
of an input for all of its choices (`TransformersModel.shares_inputs`). The peer is the same code
without this: each choice is read together with its whole input. They take turns. The program fails
if a score differs by more than 1e-4 nats. Prints a Markdown table.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

VOCABULARY = 50_257
# Workload -> the number of choices, the range of input lengths, the largest length of a choice, and
# the aim for the ratio.
WORKLOADS = {"2 choices": (2, (50, 150), 2, 1.6), "4 choices": (4, (50, 150), 6, 2.5)}
LARGEST_DIFFERENCE_NATS = 1e-4


def save_model(folder: str, layers: int) -> None:
    """Saves a random GPT-2 with a tokenizer that the benchmark only needs to open the folder."""
    import tokenizers
    import transformers

    vocabulary = {"<end>": 0, "a": 1, "b": 2}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<end>"))
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<end>")
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **ends).save_pretrained(folder)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_layer=layers, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)


def make_groups(workload: str, examples: int) -> list[Any]:
    """Returns the groups of choices of random examples."""
    from t0.evaluation.ranked_examples import ChoiceGroup

    choices, (shortest, longest), most, _ = WORKLOADS[workload]
    rng = np.random.default_rng(0)

    def draw(length: int) -> np.ndarray:
        return rng.integers(4, VOCABULARY, length).astype(np.int32)

    return [
        ChoiceGroup(
            inputs=draw(rng.integers(shortest, longest)),
            targets=tuple(draw(rng.integers(1, most + 1)) for _ in range(choices)),
            keys=tuple((0, number, choice) for choice in range(choices)),
        )
        for number in range(examples)
    ]


def rank(model: Any, groups: list[Any], shares_inputs: bool) -> tuple[float, dict[Any, float]]:
    """Scores all choices; returns the processor's seconds and the score of each choice."""
    from t0.evaluation.batching import BatchLimits
    from t0.evaluation.ranking import MAX_TOKENS

    model.shares_inputs = shares_inputs
    most = MAX_TOKENS[model.device_kind]
    batches, _ = model.plan((), BatchLimits(most, most)).take(0, groups, 0)
    scores, began = {}, time.process_time()
    for batch in batches:
        rows = model.score(batch)
        for group, row in zip(batch.groups, rows, strict=False):
            scores |= zip(group.keys, row, strict=False)
    return time.process_time() - began, scores


def main() -> None:
    """Measures both workloads, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("layers", 12), ("examples", 200), ("rounds", 3), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    import torch

    from t0.evaluation.ranking import MAX_TOKENS
    from t0.torch.pretrained_folder import PretrainedFolder
    from t0.torch.processes import World
    from t0.torch.transformers_model import TransformersModel

    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, args.layers)
        world = World(0, 1, torch.device("cpu"))
        model = TransformersModel(
            PretrainedFolder(folder), world, torch.float32, MAX_TOKENS[world.device_kind]
        )
        model.restore(folder)
    print(
        "| workload | ours, processor s | each choice with its input, processor s | ratio | aim |"
    )
    print("|---|---|---|---|---|")
    for workload, (*_, aim) in WORKLOADS.items():
        groups, seconds = make_groups(workload, args.examples), {True: [], False: []}
        for _ in range(args.rounds):
            scores = {}
            for shares in seconds:
                spent, scores[shares] = rank(model, groups, shares)
                seconds[shares].append(spent)
            largest = max(abs(scores[True][key] - scores[False][key]) for key in scores[True])
            if largest > LARGEST_DIFFERENCE_NATS:
                sys.exit(f"{workload}: a score differs by {largest:.2g} nats")
        ours, peer = (statistics.median(seconds[shares]) for shares in (True, False))
        print(f"| {workload} | {ours:.2f} | {peer:.2f} | {peer / ours:.2f} | {aim} |", flush=True)


if __name__ == "__main__":
    main()

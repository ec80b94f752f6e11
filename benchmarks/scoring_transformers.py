"""The Hugging Face side of scoring.py; needs torch and transformers, nothing of this project.

Started as `scoring_transformers.py THREADS FOLDER`; speaks JSON lines (see scoring.py). Scores the
token ids in FOLDER/<dataset>.json with one forward pass per choice, in batches that are sorted by
length and padded to the longest.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])

import torch  # noqa: E402
import transformers_t5  # noqa: E402
from transformers import T5ForConditionalGeneration  # noqa: E402

BATCH = 32
SMALL = transformers_t5.config()


class Scorer:
    """Scores the choices in a dataset's file."""

    def __init__(self, question: dict, folder: Path) -> None:
        units = json.loads((folder / f"{question['dataset']}.json").read_text())
        pairs = [(u["inputs"], target) for u in units for target in u["targets"]]
        pairs.sort(key=lambda pair: (len(pair[0]), len(pair[1])))
        self._batches = [pairs[i : i + BATCH] for i in range(0, len(pairs), BATCH)]
        self._model = T5ForConditionalGeneration(SMALL).eval()
        self._dtype = question["dtype"]
        for batch in self._batches[:2] + self._batches[-2:]:
            self._score(batch)

    def _score(self, batch: list) -> torch.Tensor:
        def padded(rows: list) -> torch.Tensor:
            longest = max(map(len, rows))
            return torch.tensor([row + [0] * (longest - len(row)) for row in rows])

        inputs = padded([inputs for inputs, _ in batch])
        targets = padded([target for _, target in batch])
        reduced = (
            torch.autocast("cpu", dtype=torch.bfloat16)
            if self._dtype == "bfloat16"
            else contextlib.nullcontext()
        )
        with torch.inference_mode(), reduced:
            logits = self._model(
                input_ids=inputs, attention_mask=(inputs > 0).long(), labels=targets
            ).logits
        nats = torch.log_softmax(logits.float(), -1).gather(-1, targets[..., None])[..., 0]
        return (nats * (targets > 0)).sum(-1)

    def measure(self) -> dict[str, float]:
        """Scores everything once."""
        started, processor = time.perf_counter(), time.process_time()
        for batch in self._batches:
            self._score(batch)
        seconds = time.perf_counter() - started
        choices = sum(map(len, self._batches))
        return {
            "choices_per_second": choices / seconds,
            "per_processor_second": choices / (time.process_time() - processor),
            "ceiling": ceiling(self._dtype),
        }


def ceiling(dtype: str) -> float:
    """Returns the GFLOP/s of a matrix product of 2,048 by 2,048 by 2,048."""
    size = 2048
    left, right = (torch.rand(size, size, dtype=getattr(torch, dtype)) for _ in range(2))
    seconds = []
    for _ in range(7):
        started = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - started)
    return 2 * size**3 / sorted(seconds)[2] / 1e9


def main() -> None:
    """Answers questions until there are no more."""
    torch.set_num_threads(int(sys.argv[1]))
    scorer = Scorer(json.loads(sys.stdin.readline()), Path(sys.argv[2]))
    print("\n{}", flush=True)
    for _ in sys.stdin:
        print("\n" + json.dumps(scorer.measure()), flush=True)


if __name__ == "__main__":
    main()

"""The Hugging Face side of inference.py; needs torch and transformers, nothing of this project.

Started as `inference_transformers.py THREADS`; speaks JSON lines (see inference.py). The first line
sets the model and the inputs, each further line asks for a measurement. `generate` gets no EOS, so
that it always predicts the same number of tokens and does not look for an end.
"""

import json
import os
import sys
import time

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])

import torch  # noqa: E402
import transformers_t5  # noqa: E402
from transformers import T5ForConditionalGeneration  # noqa: E402

SMALL = transformers_t5.config(eos_token_id=None)

# With these settings, Transformers' beam search equals ours with a length penalty of exponent 0.
BEAMS = {"length_penalty": 0.0, "early_stopping": "never"}


class Predictor:
    """Runs `generate`, on weights of the requested type."""

    def __init__(self, question: dict) -> None:
        torch.manual_seed(0)
        self._question = question
        model = T5ForConditionalGeneration(SMALL).eval()
        self._model = model.to(getattr(torch, question["dtype"]))
        self._model.generation_config.eos_token_id = None
        shape = (question["batch"], question["inputs"])
        self._inputs = torch.randint(3, 32000, shape)
        self.measure()

    def measure(self) -> dict[str, float]:
        """Predicts the batch once."""
        length = self._question["targets"]
        started, processor = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            ids = self._model.generate(
                input_ids=self._inputs,
                attention_mask=torch.ones_like(self._inputs),
                max_new_tokens=length,
                num_beams=self._question["beams"],
                do_sample=False,
                **BEAMS if self._question["beams"] > 1 else {},
            )
        seconds = time.perf_counter() - started
        processor = time.process_time() - processor
        assert ids.shape[1] == length + 1
        tokens = len(ids) * length
        return {"tokens_per_second": tokens / seconds, "per_processor_second": tokens / processor}


def main() -> None:
    """Answers questions until there are no more."""
    torch.set_num_threads(int(sys.argv[1]))
    predictor = Predictor(json.loads(sys.stdin.readline()))
    print("\n{}", flush=True)
    for _ in sys.stdin:
        print("\n" + json.dumps(predictor.measure()), flush=True)


if __name__ == "__main__":
    main()

"""A worker of `training.py`: TYPE [compiled]; reads numbers, and takes that many steps for each.

More arguments are size=SIZE and device=DEVICE.
"""

import sys
import time

import torch
import transformers_t5
from training_shapes import SHAPES, option
from transformers import T5ForConditionalGeneration
from transformers.optimization import Adafactor


def main() -> None:
    """Builds the model, then serves."""
    words = sys.argv[1:]
    device = "cuda" if any("gpu" in word for word in words) else "cpu"
    size = option(words, "size", "small")
    shape = SHAPES[size]
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(
        transformers_t5.config(size, dropout_rate=0.1, use_cache=False)
    ).to(device)
    model.train()
    optimizer = Adafactor(
        model.parameters(), lr=1e-3, relative_step=False, scale_parameter=True, warmup_init=False
    )
    forward = torch.compile(model) if "compiled" in words else model
    inputs = torch.randint(2, 32000, (shape.rows, shape.inputs), device=device)
    labels = torch.randint(2, 32000, (shape.rows, shape.targets), device=device)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            with torch.autocast(device, torch.bfloat16, enabled="bfloat16" in words):
                loss = forward(input_ids=inputs, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()
        print(f"seconds {time.perf_counter() - began}", flush=True)


if __name__ == "__main__":
    main()

"""A worker of `training_torch.py` and `gpu.py`: Transformers' T5 takes steps on request.

    python benchmarks/training_torch_peer.py '{"examples": "examples.npz", "loop": "trainer", ...}'

It answers like `training_torch_ours.py`. The settings are config (of `T5Config`), rows, lengths,
type, loop, folder, and optionally examples, device, compiled ("blocks" or "whole") and attention
("eager" or "sdpa"). The loop "plain" is a loop around forward, backward and Adafactor; "trainer" is
Transformers' `Trainer`, which needs `accelerate`. A batch of prompted examples is padded to its
longest input and its longest target.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor

IGNORED = -100
RATE = 1e-3
ENDLESS = 10**6


def padded(rows: list[np.ndarray], value: int) -> torch.Tensor:
    """Returns rows of tokens as one tensor, padded to the longest."""
    table = np.full((len(rows), max(map(len, rows))), value, np.int64)
    for row, ids in zip(table, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(table)


def random_batches(settings: Mapping[str, Any]) -> Iterator[dict[str, torch.Tensor]]:
    """Yields one batch of random tokens, repeatedly."""
    rows, lengths = settings["rows"], settings["lengths"]
    batch = {
        "input_ids": torch.randint(2, 32000, (rows, lengths["inputs"])),
        "labels": torch.randint(2, 32000, (rows, lengths["targets"])),
    }
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    while True:
        yield batch


def prompted_batches(settings: Mapping[str, Any]) -> Iterator[dict[str, torch.Tensor]]:
    """Yields batches of the examples in the file, in their order."""
    arrays = np.load(settings["examples"])
    sides = [
        np.split(arrays[name], np.cumsum(arrays[f"{name}_lengths"])[:-1])
        for name in ("inputs", "targets")
    ]
    pairs = list(zip(*sides, strict=True))
    count = settings["rows"]
    while True:
        for first in range(0, len(pairs) - count + 1, count):
            inputs, targets = zip(*pairs[first : first + count], strict=True)
            ids = padded(list(inputs), 0)
            labels = padded(list(targets), IGNORED)
            yield {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def useful(batch: Mapping[str, torch.Tensor]) -> int:
    """Returns the number of tokens without padding."""
    return int(batch["attention_mask"].sum() + (batch["labels"] != IGNORED).sum())


class Turns:
    """Takes the requested number of steps, answers, and waits for the next request."""

    def __init__(self, device: str) -> None:
        self._device, self._left, self._tokens = device, 0, 0
        self._began, self._processor = time.perf_counter(), time.process_time()

    def before(self, batch: Mapping[str, torch.Tensor]) -> None:
        """Waits for a request unless steps are left; counts the batch."""
        if not self._left:
            line = sys.stdin.readline()
            if not line:
                sys.exit(0)
            self._left, self._tokens = json.loads(line)["steps"], 0
            self._began, self._processor = time.perf_counter(), time.process_time()
        self._tokens += useful(batch)

    def after(self) -> None:
        """Answers after the last requested step."""
        self._left -= 1
        if self._left:
            return
        peak = 0
        if self._device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._began
        if self._device == "cuda":
            peak = torch.cuda.max_memory_allocated()
            torch.cuda.empty_cache()  # for the other systems
        answer = {
            "seconds": seconds,
            "processor": time.process_time() - self._processor,
            "tokens": self._tokens,
            "peak": peak,
        }
        print(json.dumps(answer), flush=True)


def plain(model: torch.nn.Module, batches: Iterator[Any], settings: Mapping[str, Any]) -> None:
    """Trains with a simple loop."""
    device, narrow = settings["device"], settings["type"] == "bfloat16"
    optimizer = Adafactor(
        model.parameters(), lr=RATE, relative_step=False, scale_parameter=True, warmup_init=False
    )
    compiled = settings.get("compiled")
    forward = torch.compile(model) if compiled == "whole" else model
    if compiled == "blocks":
        torch._dynamo.config.recompile_limit = 64
        for block in [*model.encoder.block, *model.decoder.block]:
            block.compile(dynamic=False)
    turns = Turns(device)
    for batch in batches:
        turns.before(batch)
        moved = {name: tensor.to(device) for name, tensor in batch.items()}
        with torch.autocast(device, torch.bfloat16, enabled=narrow):
            loss = forward(**moved).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        turns.after()


def by_trainer(model: torch.nn.Module, batches: Iterator[Any], options: Mapping[str, Any]) -> None:
    """Trains with `Trainer`; its batches wait for requests, and the end of a step answers."""
    from torch.utils.data import IterableDataset
    from transformers import Trainer, TrainerCallback, TrainingArguments

    turns = Turns(options["device"])

    class Batches(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            for batch in batches:
                turns.before(batch)
                yield batch

    class Answers(TrainerCallback):
        def on_step_end(self, *arguments: Any, **named: Any) -> None:
            turns.after()

    settings = TrainingArguments(
        output_dir=options["folder"],
        max_steps=ENDLESS,
        per_device_train_batch_size=1,
        optim="adafactor",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        bf16=options["type"] == "bfloat16",
        use_cpu=options["device"] == "cpu",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    Trainer(
        model,
        settings,
        train_dataset=Batches(),
        data_collator=lambda batches_of_one: batches_of_one[0],
        callbacks=[Answers()],
    ).train()


def main() -> None:
    """Builds the model, then serves."""
    settings = {"device": "cpu", **json.loads(sys.argv[1])}
    Path(settings["folder"]).mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    if settings["device"] == "cuda":
        torch.set_float32_matmul_precision("high")
    config = T5Config(**settings["config"], use_cache=False)
    config._attn_implementation = settings.get("attention", "eager")
    with torch.device(settings["device"]):
        model = T5ForConditionalGeneration(config)
    model.train()
    batches = (
        random_batches(settings) if not settings.get("examples") else prompted_batches(settings)
    )
    {"plain": plain, "trainer": by_trainer}[settings["loop"]](model, batches, settings)


if __name__ == "__main__":
    main()

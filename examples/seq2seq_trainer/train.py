"""Fine-tunes a T5 in a Hugging Face folder on a cached task with `Seq2SeqTrainer`.

    python train.py cache/qa_squad --model=t5_small --output=out

The cache of `seqio_cache_tasks` has the token ids of each example. `collate` pads them to batches:
inputs with the model's padding id, and labels with -100, which the loss ignores.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers

from t0.feeding import CachedRecords

IGNORED_LABEL = -100


def collate(
    records: Sequence[Mapping[str, Any]], lengths: Mapping[str, int], pad_id: int
) -> dict[str, torch.Tensor]:
    """Pads the examples of a batch.

    Args:
      records: records of a cache.
      lengths: the maximum numbers of tokens of "inputs" and "targets".
      pad_id: the id that pads inputs.

    Returns:
      `input_ids` and `attention_mask` [batch, longest input], and `labels` [batch, longest target].
    """

    def pad(name: str, value: int) -> torch.Tensor:
        ids = [torch.from_numpy(record[name][: lengths[name]]) for record in records]
        return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=value)

    inputs = pad("inputs", pad_id)
    labels = pad("targets", IGNORED_LABEL)
    return {"input_ids": inputs, "attention_mask": (inputs != pad_id).long(), "labels": labels}


def main(words: Sequence[str] | None = None) -> None:
    """Trains and evaluates the model, and writes it to `--output`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cache", help="a task's folder in the cache, such as cache/qa_squad")
    parser.add_argument("--model", required=True, help="a Hugging Face folder of a T5, or its name")
    parser.add_argument("--output", required=True, help="the folder of the trained model")
    parser.add_argument("--epochs", type=float, default=3.0, help="passes over the examples")
    parser.add_argument("--max_steps", type=int, default=-1, help="steps, instead of --epochs")
    parser.add_argument("--batch", type=int, default=16, help="examples per process and step")
    parser.add_argument("--learning_rate", type=float, default=0.001)
    parser.add_argument("--inputs", type=int, default=512, help="maximum tokens of an input")
    parser.add_argument("--targets", type=int, default=32, help="maximum tokens of a target")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU, even with a GPU")
    args = parser.parse_args(words)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(args.model, dtype=torch.float32)
    settings = transformers.Seq2SeqTrainingArguments(
        args.output,
        num_train_epochs=args.epochs,
        max_steps=args.max_steps,
        per_device_train_batch_size=args.batch,
        per_device_eval_batch_size=args.batch,
        learning_rate=args.learning_rate,
        lr_scheduler_type="constant",
        optim="adafactor",
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=10,
        report_to="none",
        remove_unused_columns=False,  # `collate` renames the columns of the cache
        use_cpu=args.cpu,
    )
    lengths = {"inputs": args.inputs, "targets": args.targets}
    trainer = transformers.Seq2SeqTrainer(
        model,
        settings,
        data_collator=lambda records: collate(records, lengths, model.config.pad_token_id),
        train_dataset=CachedRecords(args.cache, "train"),
        eval_dataset=CachedRecords(args.cache, "validation"),
    )
    trainer.train()
    trainer.save_model(args.output)


if __name__ == "__main__":
    main()

"""The peer of `caching.py`: SeqIO's caching with promptsource's rendering.

    python benchmarks/caching_stock.py --data_dir DIR --vocab FILE --out DIR [--tasks REGEX]

It works like the original T0: `datasets.map` with `Template.apply`, a `FunctionDataSource` over one
Python generator, T5's preprocessors, and Beam's DirectRunner. The rows are loaded before the clock
starts. Prints one line of JSON: seconds, processor seconds, records.
"""

import argparse
import functools
import json
import os
import re
import time
from pathlib import Path

from t0 import compat

compat.apply("seqio")

import apache_beam as beam  # noqa: E402
import datasets  # noqa: E402
import promptsource.templates  # noqa: E402
import promptsource.utils  # noqa: E402
import seqio  # noqa: E402
import tensorflow as tf  # noqa: E402
from absl import flags  # noqa: E402
from seqio.scripts import cache_tasks_main  # noqa: E402
from t5.data import preprocessors as t5_preprocessors  # noqa: E402

NO_LABEL = "<NO LABEL>"
# (dataset, subset, splits, names of templates); None for the templates means all.
WORKLOAD = (
    ("super_glue", "rte", ("train", "validation"), None),
    ("hellaswag", None, ("validation",), ("how_ends",)),
)


def rendered(row, template):
    """Renders a row; if there are not two parts, or the inputs are empty, it is dropped later."""
    row = promptsource.utils.removeHyphen(row)
    texts = template.apply(row)
    inputs, targets = texts if len(texts) == 2 else ("", "")
    example = {"inputs": inputs, "targets": targets or (NO_LABEL if inputs else "")}
    choices = template.get_answer_choices_list(row)
    return {**example, "answer_choices": choices} if choices else example


def prompted(rows, template):
    """Renders all rows of a split."""
    examples = rows.map(functools.partial(rendered, template=template))
    examples = examples.filter(lambda row: bool(row["inputs"] and row["targets"]))
    columns = {"inputs", "targets", "answer_choices"}
    return examples.remove_columns([name for name in rows.column_names if name not in columns])


def source(splits, template):
    """Returns a source with one Python generator per split, like the original."""

    def dataset_fn(split, shuffle_files, seed=None):
        examples = prompted(splits[split], template)
        signature = {name: tf.TensorSpec((), tf.string) for name in ("inputs", "targets")}
        if "answer_choices" in examples.column_names:
            signature["answer_choices"] = tf.TensorSpec((None,), tf.string)
        return tf.data.Dataset.from_generator(examples.__iter__, output_signature=signature)

    sizes = {split: len(rows) for split, rows in splits.items()}
    return seqio.FunctionDataSource(dataset_fn, splits=list(splits), num_input_examples=sizes)


def expand(dataset):
    """Applies T5's rank classification like the original (`tf.size` fixes a bug in it)."""
    return t5_preprocessors.rank_classification(
        dataset,
        inputs_fn=lambda ex: tf.fill((tf.size(ex["answer_choices"]),), ex["inputs"]),
        targets_fn=lambda ex: ex["answer_choices"],
        is_correct_fn=lambda ex: tf.equal(ex["answer_choices"], tf.strings.strip(ex["targets"])),
        weight_fn=lambda ex: 1.0,
    )


def loaded(data_dir, name, subset, splits):
    """Loads the rows of the splits as Arrow tables."""
    folder = Path(data_dir, name, subset or "default")
    files = {split: str(folder / f"{split}.jsonl.gz") for split in splits}
    rows = datasets.load_dataset("json", data_files=files)
    return {split: rows[split] for split in splits}


def register(data_dir, vocabulary, pattern):
    """Registers the workload's tasks whose original names match, and returns the names."""
    features = {
        "inputs": seqio.Feature(vocabulary, add_eos=False, dtype=tf.int32),
        "targets": seqio.Feature(vocabulary, add_eos=True, dtype=tf.int32),
    }
    tokenized = [
        seqio.preprocessors.tokenize,
        seqio.preprocessors.append_eos,
        seqio.CacheDatasetPlaceholder(required=False),
    ]
    for name, subset, splits, template_names in WORKLOAD:
        rows = None
        templates = promptsource.templates.DatasetTemplates(name, subset)
        for template in templates.templates.values():
            if template_names and template.name not in template_names:
                continue
            task = re.sub(
                r"[^\w\d\._]+", "_", "_".join(filter(None, (name, subset, template.name)))
            )
            for suffix, first in (("", []), ("_score_eval", [expand])):
                if not re.fullmatch(pattern, task + suffix):
                    continue
                rows = rows or loaded(data_dir, name, subset, splits)
                seqio.TaskRegistry.add(
                    task + suffix,
                    source=source(rows, template),
                    preprocessors=[*first, *tokenized],
                    output_features=features,
                )
                yield task + suffix


def main():
    """Caches the tasks and prints the time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tasks", default=".*", help="regex of tasks to cache")
    args = parser.parse_args()
    datasets.disable_progress_bars()
    datasets.disable_caching()
    vocabulary = seqio.SentencePieceVocabulary(args.vocab, extra_ids=100)
    _ = vocabulary.tokenizer
    tasks = list(register(args.data_dir, vocabulary, args.tasks))
    flags.FLAGS(["stock"])
    print("ready", flush=True)
    began, used = time.monotonic(), sum(os.times()[:4])
    with beam.Pipeline() as pipeline:
        cache_tasks_main.run_pipeline(pipeline, tasks, args.out)
    seconds, used = time.monotonic() - began, sum(os.times()[:4]) - used
    stats = [json.loads(path.read_text()) for path in Path(args.out).glob("*/stats.*.json")]
    records = sum(stat["examples"] for stat in stats)
    print(json.dumps({"seconds": seconds, "processor": used, "records": records}))


if __name__ == "__main__":
    main()

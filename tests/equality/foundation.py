"""What the sections stand on: data, vocabularies, a cache, a trained model, its evaluation.

    foundation.make(folder, real_rows=Path("/data"))   # data/ cache/ model/ *.model

It is made once, when a recording is made, and kept with it: a later comparison gives every section
the same inputs, whatever became of the code that made them.
"""

import gzip
import json
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = {"inputs": 96, "targets": 32}
ROWS = 60
# Subsets of T0's datasets in a folder of copies, each read from where ROWS rows of it are known.
REAL = (
    "super_glue/rte",
    "super_glue/cb",
    "super_glue/wsc.fixed",
    "super_glue/wic",
    "glue/mrpc",
    "hellaswag/default",
    "trec/default",
    "ag_news/default",
    "rotten_tomatoes/default",
    "openbookqa/main",
    "web_questions/default",
)
# The trained model's command line, less its folder.
TRAINED = (
    "--module_import=t0.seqio_tasks",
    "--additional_task_cache_dirs=$BASE/cache",
    "--model_dir=$BASE/model",
    "--gin_file=dataset.gin",
    "--gin_file=models/t5.1.1.tiny.gin",
    "--gin_file=learning_rate_schedules/constant_0_001.gin",
    "--gin_param=MIXTURE_NAME = 'weather_train'",
    "--gin_param=mesh_train_dataset_fn.use_cached = True",
    "--gin_param=run.train_steps = 20",
    "--gin_param=run.save_checkpoints_steps = 10",
    "--gin_param=run.batch_size = ('tokens_per_batch', 1536)",
    f"--gin_param=run.sequence_length = {LENGTHS}",
    "--gin_param=get_variable_dtype.master_dtype = 'float32'",
    "--activation_dtype=float32",
)
SCORED = (
    "--module_import=t0.seqio_tasks",
    "--additional_task_cache_dirs=$BASE/cache",
    "--model_dir=$BASE/model",
    "--gin_file=$BASE/model/operative_config.gin",
    "--gin_file=score_eval.gin",
    "--gin_param=MIXTURE_NAME = 'weather_eval'",
    "--gin_param=mesh_eval_dataset_fn.use_cached = True",
    "--gin_param=run.dataset_split = 'validation'",
    "--gin_param=eval_checkpoint_step = 20",
    "--gin_param=run.batch_size = ('tokens_per_batch', 1536)",
)


def lay_out_data(folder: Path, real_rows: Path | None) -> None:
    """Writes data/ and the vocabularies: made-up rows, and the first rows of real datasets."""
    from tests.end_to_end import tiny_world
    from tests.sources import tiny_recipes

    tiny_world.lay_out(folder)
    data = tiny_recipes.lay_out(folder / "data")
    tickets = ROOT / "examples" / "own_prompts" / "data"
    for split in ("train", "validation"):
        lines = (tickets / "tickets" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        texts = [{"text": json.loads(line)["text"]} for line in lines]
        tiny_recipes.write_lines(data / "text" / f"{split}.jsonl", texts)
    shutil.copy(tickets / "tickets.model", folder / "tickets.model")
    (folder / "inputs").write_text("early much rain today in Oslo. Choose: rain, snow\nmuch snow\n")
    (folder / "targets").write_text("rain\nsnow\n")
    for name in REAL if real_rows else ():
        for path in sorted((real_rows / name).glob("*.jsonl.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                rows = [line for _, line in zip(range(ROWS), lines, strict=False)]
            target = data / name / path.name.removesuffix(".gz")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("".join(rows), encoding="utf-8")


def lay_out_guides(folder: Path) -> None:
    """Writes what the commands of T5X's guides read: files of a user, and data."""
    from tests.end_to_end import prepared_rows, t5x_guides

    prepared_rows.prepare(folder / "tfds")
    (folder / "project").mkdir()
    for name in t5x_guides.FILES:
        (folder / "project" / name).write_text(t5x_guides.file_text(name))


def make(bench, real_rows: Path | None) -> None:
    """Makes the foundation in `bench.base` with the commands themselves."""
    lay_out_data(bench.base, real_rows)
    tasks = "--tasks=weather_train,weather_eval"
    caching = ("--module_import=t0.seqio_tasks", "--num_workers=1")
    bench.must("seqio_cache_tasks", tasks, "--output_cache_dir=$BASE/cache", *caching)
    bench.must("t5_mesh_transformer", *TRAINED)
    bench.must("t5_mesh_transformer", *SCORED)
    lay_out_guides(bench.base)
    # Beside the model: where it has results of a step, that step is not evaluated again.
    (bench.base / "model" / "validation_eval").rename(bench.base / "evaluation")


def commit() -> str:
    """Returns the commit of this checkout, for the record."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()

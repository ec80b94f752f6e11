"""Paths that cannot be used, given to each flag of each command: one message, no traceback."""

import pytest

from tests.end_to_end.command_lines import EVALUATE, TRAIN
from tests.helpers.hostile_paths import KINDS, fault, hostile

MESH = ["--module_import=t0.seqio_tasks", "--model_dir=$OUT/model"]
CACHE = ["--tasks=weather_retell", "--module_import=t0.seqio_tasks"]
# (program, its words): {} is the hostile path, $OUT a folder that can be written, $MODEL a
# checkpoint's folder, $RESULTS a file of results.
COMMANDS = [
    ("t0", ["show", "weather_retell", "--data_dir={}"]),
    ("t0", ["show", "weather_retell", "--vocab={}"]),
    ("t0", ["lint", "--data_dir={}", "weather_retell"]),
    ("t0", ["report", "{}", "--output=$OUT/report"]),
    ("t0", ["report", "$RESULTS", "--output={}"]),
    ("t0", ["compare", "$RESULTS", "{}"]),
    ("t0", ["convert", "{}", "$OUT/hf"]),
    ("t0", ["convert", "$MODEL", "{}", "--to=hf"]),
    ("t0", ["convert", "$MODEL", "$OUT/hf", "--to=hf", "--vocab={}"]),
    ("t0", ["plan", "--gin_file={}"]),
    ("t0", ["eval", "{}", "--tasks=weather_eval"]),
    ("t0", ["eval", "$MODEL", "--tasks=weather_eval", "--limit=1", "--output={}"]),
    ("t0", ["eval", "$MODEL", "--tasks=weather_eval", "--limit=1", "--cache_dirs={}"]),
    ("t0", ["rehearse", "--gin_file={}"]),
    ("seqio_cache_tasks", [*CACHE, "--output_cache_dir={}"]),
    ("seqio_cache_tasks", [*CACHE, "--output_cache_dir=$OUT/cache", "--data_dir={}"]),
    ("seqio_cache_tasks", [*CACHE, "--output_cache_dir=$OUT/cache", "--vocab={}"]),
    ("t5_mesh_transformer", [*MESH, *TRAIN, "--model_dir={}"]),
    ("t5_mesh_transformer", [*MESH, *TRAIN, "--data_dir={}"]),
    ("t5_mesh_transformer", [*MESH, *TRAIN, "--vocab={}"]),
    ("t5_mesh_transformer", [*MESH, *TRAIN, "--checkpoint={}"]),
    ("t5_mesh_transformer", [*MESH, *TRAIN, "--save_spec={}"]),
    ("t5_mesh_transformer", [*MESH, *TRAIN, "--gin_location_prefix={}", "--dry_run"]),
    ("t5_mesh_transformer", [*MESH, *TRAIN, "--additional_task_cache_dirs={}", "--dry_run"]),
    ("t5_mesh_transformer", [*MESH, "--gin_file={}"]),
    ("t5_mesh_transformer", [*MESH, *EVALUATE, "--model_dir={}"]),
    (
        "t5_mesh_transformer",
        [*MESH, "--gin_file=runs/infer.gin", "--gin.INPUT_FILE='{}'"]
        + ["--gin.CHECKPOINT_PATH='$MODEL'", "--gin.INFER_OUTPUT_DIR='$OUT/out'"],
    ),
]
# The commands whose paths .ci/run tries: each of them reads or writes in its own way.
MAIN = [
    (program, words)
    for program, words in COMMANDS
    if words[:2] in (["report", "{}"], ["convert", "{}"], ["eval", "{}"])
    or words[-1] in ("--data_dir={}", "--model_dir={}", "--checkpoint={}")
]
SLOW, EXHAUSTIVE = pytest.mark.slow, pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("program", "words"),
    [
        pytest.param(*command, marks=[SLOW if command in MAIN else EXHAUSTIVE])
        for command in COMMANDS
    ],
    ids=[f"{p} {' '.join(w[-2:])}" for p, w in COMMANDS],
)
def test_unusable_path_in_any_flag_is_one_message(
    program, words, server, scored, model_dir, tmp_path
):
    del scored
    results = model_dir / "validation_eval" / "results_20.json"
    wrong = []
    for kind in KINDS:
        folder = tmp_path / kind.replace(" ", "_")
        (folder / "out").mkdir(parents=True)
        path = str(hostile(kind, folder))
        filled = {"{}": path, "$OUT": f"{folder}/out", "$MODEL": f"{model_dir}"}
        filled["$RESULTS"] = str(results)
        given = [_filled(word, filled) for word in words]
        done = server.run(*given, program=program, as_root=False)
        wrong += fault(program, kind, done.status, done.out + done.err)
    assert not wrong, "\n\n".join(wrong)


def _filled(word, values):
    for name, value in values.items():
        word = word.replace(name, value)
    return word

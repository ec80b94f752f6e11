"""`t0 plan` as users call it: the recipe's flags, both modes, sweeps."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from t0.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
SMALL = shlex.split(
    "--gin_file=dataset.gin --gin_file=models/t5.1.1.small.gin --gin_file=mesh/v3-8.gin"
    " --gin_file=learning_rate_schedules/constant_0_001.gin"
    " --gin_param=\"run.sequence_length = {'inputs': 1024, 'targets': 256}\""
    " --gin_param=run.train_steps=1000 --gin_param=tpu_mesh_shape.model_parallelism=2"
)
COMMON = shlex.split(
    "--tpu=name --gcp_project=project --tpu_zone=zone --additional_task_cache_dirs=/none"
    " --gin_param=\"run.sequence_length = {'inputs': 1024, 'targets': 256}\""
    " --gin_param='pack_dataset.use_custom_ops = False'"
    " --gin_param='mesh_train_dataset_fn.use_cached = True'"
    " --gin_param='serialize_num_microbatches.tokens_per_microbatch_per_replica = 2048'"
)
TRAIN = [
    *COMMON,
    *shlex.split(
        "--model_dir=gs://bucket/model --gin_file=dataset.gin"
        " --gin_param=\"MIXTURE_NAME = 't0++_train'\" --gin_file=models/t5.1.1.lm100k.xxl.gin"
        " --gin_param=\"utils.tpu_mesh_shape.tpu_topology = 'v3-512'\""
        " --gin_param='run.train_steps = 1112200'"
        " --gin_file=learning_rate_schedules/constant_0_001.gin"
        " --gin_param=tokens_per_batch=1048576 --gin_param=\"model_info = 'gs://bucket/info.txt'\""
        " --gin_param='tpu_mesh_shape.model_parallelism = 8'"
    ),
]
SCORE = [
    *COMMON,
    *shlex.split(
        "--model_dir=gs://bucket/model --gin_file=models/t5.1.1.lm100k.xxl.gin"
        " --gin_file=score_eval.gin --gin_param=\"MIXTURE_NAME = 't0_eval_score_eval'\""
        " --gin_param=\"utils.tpu_mesh_shape.tpu_topology = 'v3-128'\""
        " --gin_param=\"run.batch_size = ('tokens_per_batch', 262144)\""
        " --gin_param='mesh_eval_dataset_fn.use_cached = True'"
        " --gin_param='tpu_mesh_shape.model_parallelism = 4'"
        " --gin_param='eval_checkpoint_step = 1112200'"
        " --gin_param=\"run.dataset_split = 'validation'\""
    ),
]


@pytest.fixture(autouse=True)
def always_empty_gin(empty_gin):
    """For commands, which bind."""


def run(capsys, *words):
    import gin

    gin.clear_config()
    assert cli.main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_plan_counts_finetune_steps_from_the_checkpoint(capsys):
    words = [*TRAIN, "--json", "--checkpoint=/models/t5/model.ckpt-1000"]
    plan = json.loads(run(capsys, *words, "--finetune_steps=500"))
    assert (plan["run"]["train_steps"], plan["run"]["steps"]) == (1500, 500)
    plan = json.loads(run(capsys, *words, "--finetune_steps=500", "--start_step=7"))
    assert (plan["run"]["train_steps"], plan["run"]["steps"]) == (507, 500)
    gpus = ["--engine=torch", "--gpu=a100-80", "--json", "--finetune_steps=500", *TRAIN[10:]]
    assert json.loads(run(capsys, *gpus))["time"]["train_steps"] == 500


def test_plan_with_price_prints_the_cost(capsys):
    words = [*SMALL, "--start_step=0", "--price=1.5"]
    out = run(capsys, *words)
    hours = float(re.search(r" h, ([\d,.]+) core-hours\n", out)[1])
    cost = re.search(r"^cost of the run: ([\d.]+) \([\d.]+ core-hours at 1.5\)$", out, re.M)[1]
    assert float(cost) == pytest.approx(1.5 * hours, abs=0.8)
    plan = json.loads(run(capsys, *words, "--json"))
    assert plan["cost"]["cost"] == 1.5 * plan["run"]["core_hours"]
    gpus = ["--engine=torch", "--gpu=a100-80", "--gpus=2", "--price=2", "--json", *SMALL]
    plan = json.loads(run(capsys, *gpus))
    assert plan["run"]["steps"] == plan["time"]["train_steps"] > 0
    hours = plan["run"]["steps"] / 1000 * plan["time"]["hours_per_1000_steps"]
    assert plan["cost"]["cost"] == pytest.approx(4 * hours)  # two GPUs


def test_plan_sweep_with_price_has_a_column_for_the_cost(capsys):
    words = [*SMALL, "--sweep", "tpu=v3-8,v3-32", "--start_step=0", "--price=1.5"]
    assert run(capsys, *words).splitlines()[0].split()[-1] == "cost"
    plans = [row["plan"] for row in json.loads(run(capsys, *words, "--json"))]
    assert [plan["cost"]["cost"] for plan in plans] == [
        1.5 * plan["run"]["core_hours"] for plan in plans
    ]


def test_plan_of_an_adapter_on_gpus_names_trained_and_frozen_weights(capsys):
    words = ["--engine=torch", "--gpu=a100-80", *SMALL, "--checkpoint=/x/model.ckpt-9"]
    words += ["--gin_param=t0.adapter.method='lora'", "--gin_param=run.train_steps=1000"]
    plan = json.loads(run(capsys, *words, "--json"))
    assert plan["run"]["steps"] == 1000  # of the adapter, which starts at 0
    again = json.loads(run(capsys, *words, "--finetune_steps=7", "--json"))
    assert again["run"]["steps"] == 7
    adapter = plan["adapter"]
    assert adapter["frozen_bytes"] == 2 * plan["parameters"]
    assert adapter["trained_bytes"] == 4 * adapter["parameters"] < plan["parameters"] / 10
    sizes = adapter["frozen_bytes"] + adapter["trained_bytes"]
    assert plan["per_gpu_bytes"]["weights"] == sizes
    text = run(capsys, *words)
    assert re.search(rf"frozen weights, bfloat16, sharded +{adapter['frozen_bytes']:,} bytes", text)
    assert re.search(
        rf"trained weights \(lora\), float32, sharded +{adapter['trained_bytes']:,} b", text
    )
    assert "weights, float32, sharded " not in text.replace("(lora), float32, sharded", "")
    assert re.search(r"^run: 1,000 steps: [\d.]+ h, [\d.]+ GPU-hours$", text, re.M)


def test_plan_of_an_adapter_on_gpus_counts_no_gradients_of_frozen_weights(capsys):
    words = ["--engine=torch", "--gpu=a100-80", *SMALL]
    full = json.loads(run(capsys, *words, "--json"))
    words.append("--gin_param=t0.adapter.method='ia3'")
    adapter = json.loads(run(capsys, *words, "--json"))
    assert adapter["flops"]["per_step"] == full["flops"]["per_step"] * 2 // 3
    assert adapter["time"]["step_seconds"] == pytest.approx(full["time"]["step_seconds"] * 2 / 3)
    assert not adapter["batch"]["answer_choices"]
    # Steps with answer choices are not replayed, and the number of choices is unknown.
    words.append("--gin_param=choice_losses.likelihood=1.0")
    choices = json.loads(run(capsys, *words, "--json"))
    assert choices["per_gpu_bytes"]["gathered"] > adapter["per_gpu_bytes"]["gathered"]
    assert "The plan counts one choice of each example" in run(capsys, *words)


def test_plan_of_t0_training_recipe(capsys):
    plan = json.loads(run(capsys, "--json", "--start_step=1100000", *TRAIN))
    assert plan["parameters"] == 11_135_332_352
    assert plan["batch"]["sequences"] == 1024
    assert plan["batch"]["microbatches"] == 8
    assert plan["run"]["steps"] == 12_200
    # It was trained so, and the plan says that it is tight: 15.48 GiB usable on a v3 core.
    assert plan["verdict"]["word"] == "fits with recomputation"
    # Tokens: 6 FLOPs for each parameter and token it meets are a fair check of 4.5e16. Encoder
    # layers, 4.5e9 parameters, meet 2^20 inputs, the decoder's 6.4e9 some of each.
    assert 3.5e16 < plan["flops"]["per_step"] < 5.5e16


def test_plan_of_t0_scoring_recipe(capsys):
    plan = json.loads(run(capsys, "--json", *SCORE))
    assert plan["mode"] == "score_eval"
    assert plan["batch"]["sequences"] == 256
    assert plan["per_core_bytes"]["optimizer"] == plan["per_core_bytes"]["gradients"] == 0
    assert plan["run"] == {}


@pytest.mark.parametrize("name", ["t0_train", "t0pp_train", "t0_3b"])
def test_plan_of_training_run_from_two_gin_files(name, capsys):
    words = [f"--gin_file=runs/{name}.gin", "--gin_file=mesh/v3-512.gin", "--json"]
    plan = json.loads(run(capsys, *words))
    assert plan["run"]["steps"] == 12_200  # it continues run.init_checkpoint, step 1,100,000
    assert plan["batch"]["tokens_by_longest_feature"] == 1_048_576
    assert plan["parameters"] == (2_849_757_184 if name == "t0_3b" else 11_135_332_352)
    assert plan["verdict"]["word"] != "does not fit"


def test_plan_of_scoring_run_from_two_gin_files(capsys):
    words = ["--gin_file=runs/t0_score_eval.gin", "--gin_file=mesh/v3-128.gin", "--json"]
    plan = json.loads(run(capsys, *words))
    assert plan["mesh"]["shape"] == {"batch": 32, "model": 4}
    assert plan["verdict"]["word"] == "fits"


def test_plan_prints_verdict_layout_and_times(capsys):
    out = run(capsys, *SMALL)
    for part in ("VERDICT: fits", "heads 6 over model: 3 a core", "all-reduce", "core-hours"):
        assert part in out


def test_plan_accepts_former_fast_flag_with_a_note(capsys):
    assert cli.main(["plan", *SMALL, "--fast", "--json"]) == 0
    assert "note: --fast is now the default" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--exact", "--sweep", "tpu=v3-8,v3-32"], "--exact cannot be used with --sweep"),
        (["--engine=torch", "--gpu=a100-80", "--exact"], "--exact is for plans of TPUs"),
    ],
)
def test_plan_flags_that_exclude_each_other_are_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        cli.main(["plan", *SMALL, *words])
    assert message in capsys.readouterr().err


def test_plan_names_the_zones_of_the_slice(capsys):
    out = run(capsys, *SMALL, "--start_step=0")
    assert "\nzones with a v3-8: us-central1-a, us-central1-b, europe-west4-a (" in out
    topology = ["--gin_param=utils.tpu_mesh_shape.tpu_topology='v2-8'", "--start_step=0"]
    assert "zones with" not in run(capsys, *SMALL, *topology)


@pytest.mark.slow
def test_plan_formulas_agree_with_exact_lowering(capsys):
    # Two layers, so that it takes seconds.
    batch = "--gin_param=run.batch_size=('tokens_per_replica',4096)"
    words = [*SMALL, "--gin_param=num_layers=2", batch, "--json"]
    fast = json.loads(run(capsys, *words))
    real = json.loads(run(capsys, "--exact", *words))
    assert (fast["method"], real["method"]) == ("formulas", "lowering")
    for part in ("topology", "mesh", "batch", "parameters", "flops", "vocabulary"):
        assert fast[part] == real[part], part
    for kind in ("weights", "optimizer", "weight_copies"):
        assert fast["per_core_bytes"][kind] == real["per_core_bytes"][kind], kind
    assert fast["verdict"]["word"] == real["verdict"]["word"]
    seconds = [plan["time"]["step_seconds"] for plan in (fast, real)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.01)


def test_plan_sweep_ranks_and_names_the_best(capsys):
    axes = ["--sweep", "tpu=v3-8,v3-32", "model_parallelism=1,2,8", "sequences_per_batch=64"]
    lines = run(capsys, *SMALL, *axes).splitlines()
    words = [line.split() for line in lines]
    assert words[0][:3] == ["tpu", "model_parallelism", "sequences_per_batch"]
    assert [w[0] for w in words[1:5]] == ["v3-32", "v3-32", "v3-8", "v3-8"]
    hours = [float(w[-2]) for w in words[1:5]]
    assert hours == sorted(hours)
    assert all("impossible: the mesh" in line and "[1, 2]" in line for line in lines[5:7])
    assert lines[8].startswith("ranked: runs that fit, then")
    assert lines[11].startswith("best: tpu=v3-32 model_parallelism=")
    rows = json.loads(run(capsys, *SMALL, *axes, "--json"))
    assert len(rows) == 6
    assert rows[0]["plan"]["verdict"]["word"] == "fits"


@pytest.mark.parametrize(
    "words",
    [
        ["--price=1.5"],
        ["--sweep", "tpu=v3-8,v3-32", "model_parallelism=1,2,8", "sequences_per_batch=64"],
        ["--engine=torch", "--gpu=a100-80", "--gpus=2", "--price=2"],
    ],
    ids=["one plan", "sweep", "GPUs"],
)
def test_plan_fits_a_terminal_of_80_columns(capsys, monkeypatch, words):
    piped = run(capsys, *SMALL, *words)
    assert max(map(len, piped.splitlines())) > 80  # for grep
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = run(capsys, *SMALL, *words)
    assert max(map(len, shown.splitlines())) <= 80
    prose = [line for line in piped.splitlines() if re.match("VERDICT|best|cost|step", line)]
    assert prose
    for line in prose:  # nothing is lost
        assert " ".join(line.split()) in " ".join(shown.split())


def test_plan_invalid_flag_is_one_message(capsys):
    for words, part in (
        (["--batch_size=two"], "--batch_size"),
        (["--sweep", "pods=3"], "unknown axis"),
    ):
        with pytest.raises(SystemExit) as caught:
            run(capsys, *SMALL, *words)
        assert caught.value.code == 2
        assert part in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", [TRAIN, SCORE], ids=["train", "score"])
def test_plan_lowers_whole_recipe_in_a_new_process(words):
    command = [sys.executable, "-m", "t0.cli.main", "plan", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["method"] == "lowering"
    assert plan["parameters"] == 11_135_332_352
    if plan["mode"] == "train":
        assert plan["operations"]["CrossReplicaSum"] == 2375


def test_plan_of_a_gpu_run_with_pytorch(capsys):
    words = ["--engine=torch", "--gpu=a100-80", "--gin_file=runs/t0_3b.gin"]
    one, eight = (json.loads(run(capsys, *words, f"--gpus={n}", "--json")) for n in (1, 8))
    assert one["parameters"] == 2_849_757_184
    assert (one["batch"]["microbatches"], eight["batch"]["microbatches"]) == (512, 64)
    assert one["per_gpu_bytes"]["weights"] == 4 * 2_849_757_184
    assert eight["per_gpu_bytes"]["weights"] == one["per_gpu_bytes"]["weights"] // 8
    assert one["verdict"]["word"] == eight["verdict"]["word"] == "fits"
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    for plan in (one, eight):
        *parts, total, _ = plan["per_gpu_bytes"].values()
        assert total == sum(parts)
        assert f"{total / 2**30:.2f} GiB" in page
    assert eight["time"]["step_seconds"] == pytest.approx(one["time"]["step_seconds"] / 8)
    text = run(capsys, *words)
    assert (
        "in bfloat16, --recompute=off, --gradients=keep, float32 products in TF32" in text
        and "VERDICT: fits" in text
    )


def test_plan_of_all_gpus_marks_the_smallest_that_fits(capsys):
    words = ["--engine=torch", "--gin_file=runs/t0_3b.gin"]
    rows = json.loads(run(capsys, *words, "--json"))
    assert [row["bytes"] > row["usable"] for row in rows] == [
        row["verdict"] == "does not fit" for row in rows
    ]
    (smallest,) = (row for row in rows if row["smallest"])
    assert smallest["usable"] == min(r["usable"] for r in rows if r["verdict"] == "fits")
    # T0-3B, whose 512 microbatches are summed in host memory, fits a 16 GB card.
    assert 14.3 < smallest["usable"] / 2**30 < 14.4
    assert (smallest["gradients"], smallest["host_bytes"]) == ("offload", 4 * 2_849_757_184)
    assert smallest["bytes"] < 14.3 * 2**30
    lines = run(capsys, *words).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [row["gpu"] for row in rows]
    assert [line.split()[0] for line in lines if "(smallest)" in line] == [smallest["gpu"]]
    kept = json.loads(run(capsys, *words, "--gradients=keep", "--json"))
    assert all(row["gradients"] == "keep" and not row["host_bytes"] for row in kept)
    assert {row["gpu"] for row in kept if row["verdict"] == "fits"} < {
        row["gpu"] for row in rows if row["verdict"] == "fits"
    }


def test_plan_of_11b_with_fused_updates_fits_an_80_gb_gpu(capsys):
    words = ["--engine=torch", "--gpu=a100-80", "--gin_file=runs/t0pp_train.gin"]
    one_microbatch = "--gin_param=tokens_per_batch = 2048"
    plan = json.loads(run(capsys, *words, one_microbatch, "--json"))
    assert plan["batch"]["microbatches"] == 1
    assert (plan["switches"]["gradients"], plan["verdict"]["word"]) == ("fused", "fits")
    assert plan["per_gpu_bytes"]["total"] < 72 * 2**30
    text = run(capsys, *words)
    assert "--gradients=offload" in text and "tokens hide them" in text
    assert "gradients in host memory, float32" in text


def test_plan_that_fits_no_gpu_suggests_what_would(capsys):
    words = ["--engine=torch", "--gin_file=runs/t0_3b.gin"]
    large = "--gin_param=serialize_num_microbatches.tokens_per_microbatch_per_replica=1048576"
    plan = json.loads(run(capsys, *words, "--gpu=a100-80", large, "--json"))
    assert plan["switches"]["recompute"] and plan["verdict"]["word"] == "does not fit"
    assert "tokens_per_microbatch_per_replica = " in plan["verdict"]["reason"]
    assert "such GPUs" in run(capsys, *words, "--gpu=t4")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine=torch", "--price=2"], "--price needs --gpu, one of rtx-3060-12"),
        (["--engine=torch", "--gpu=l4", "--gradients=fused"], "--gradients=offload"),
        (["--engine=torch", "--gpus=2", "--gradients=offload"], "is for one process"),
        (["--gradients=fused"], "is for plans of GPUs with PyTorch"),
        (["--engine=torch", "--gpu=a100-81"], "Did you mean 'a100-80'"),
        (["--gpu=a100-80"], "is for plans of GPUs with PyTorch"),
        (["--engine=torch", "--gpu=l4", "--sweep", "tpu=v3-8"], "--sweep is for plans of TPUs"),
        (["--engine=torch", "--gpu=l4", "--gpus=3"], "a multiple of 3"),
    ],
)
def test_plan_gpu_user_error_is_named(capsys, words, said):
    import gin

    gin.clear_config()
    with pytest.raises(SystemExit):
        cli.main(["plan", *words, "--gin_file=runs/t0_3b.gin"])
    assert said in capsys.readouterr().err

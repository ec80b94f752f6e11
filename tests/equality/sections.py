"""The sections: each a function that runs a few commands of one part of the house."""

import json
import re
import shlex
import string

from tests.end_to_end import recipes, t5x_guides
from tests.equality import facts, snapshot, unfinished
from tests.equality.foundation import LENGTHS, ROOT, SCORED, TRAINED

MESH = "t5_mesh_transformer"
CACHE = "seqio_cache_tasks"
TASKS = "--module_import=t0.seqio_tasks"
RECIPES = "--module_import=t0.recipes"
CACHED = "--additional_task_cache_dirs=$BASE/cache"
TINY = "--gin_file=models/t5.1.1.tiny.gin"
OPERATIVE = "--gin_file=$BASE/model/operative_config.gin"
MODEL = "--model_dir=$OUT/model"


def param(**values):
    """--gin_param for each: run__train_steps=3 binds run.train_steps."""
    return [f"--gin_param={name.replace('__', '.')} = {value!r}" for name, value in values.items()]


def macro(**values):
    """--gin.NAME=VALUE for each."""
    return [f"--gin.{name}={value!r}" for name, value in values.items()]


CACHED_TASKS = (
    "super_glue_rte_GPT_3_style",
    "super_glue_rte_GPT_3_style_score_eval",
    "super_glue_cb_can_we_infer",
    "super_glue_cb_can_we_infer_score_eval",
    "super_glue_wsc.fixed_GPT_3_Style_score_eval",
    "super_glue_wic_(same|similar)_sense",
    "hellaswag_Predict_ending_with_hint",
    "hellaswag_Predict_ending_with_hint_score_eval",
    "trec_what_category_best_describe",
    "ag_news_classify",
    "rotten_tomatoes_Movie_Expressed_Sentiment",
    "glue_mrpc_generate_paraphrase",
    "openbookqa_main_choices",
    "web_questions_get_the_answer",
    "weather_which_word",
    "weather_own_choices",
    "weather_own_choices_score_eval",
    "weather_retell",
    "qa_toy",
    "mt_en_de",
    "sni_def_pos_1",
    "text_prefix_lm",
)


def caching(bench):
    """Twenty tasks of every kind, by one worker, by two and in the process itself."""
    words = [CACHE, f"--tasks={','.join(CACHED_TASKS)}", TASKS, RECIPES, "--skip_absent_splits"]
    words += ["--splits=train,validation,test", "--output_cache_dir=$OUT/cache"]
    words += ["--vocab=$BASE/tickets.model", "--allow_hidden_labels", "--max_dropped_share=1"]
    bench.run("one", *words, "--num_workers=1", anew=True)
    bench.run("two", *words, "--num_workers=2", anew=True)
    bench.run("again", *words, "--num_workers=2", at="two", anew=True)
    few = [CACHE, TASKS, "--output_cache_dir=$OUT/cache", "--tasks=weather_.*"]
    shards = ["--min_shards=2", "--max_shards=3", "--enable_char_counts", "--base_seed=5"]
    bench.run("shards", *few, *shards, "--num_workers=0")
    beam = "--pipeline_options=--runner=DirectRunner,--direct_num_workers=1"
    bench.run("beam", *few[:-1], "--tasks=weather_which_word", beam)
    broken = [*few[:-1], "--tasks=broken_.*,weather_retell"]
    bench.run("broken", *broken, "--num_workers=1", anew=True)
    bench.run("verified", "t0", "verify", "$OUT/cache", at="two")
    bench.run("verified_json", "t0", "verify", "$OUT/cache", "--json", at="two")


def training(bench):
    """Thirty steps of the tiny model: types, microbatches, meshes, going on, evaluations."""
    # The foundation's command line, into a folder of its own, with thirty steps.
    words = [word for word in TRAINED if not word.startswith(("--model_dir", "--activation"))]
    words = [MESH, MODEL, *words, *param(run__train_steps=30)]
    exact = "--activation_dtype=float32"
    bench.run("float32", *words, exact)
    bench.run("bfloat16", *words, "--activation_dtype=bfloat16", "--seed=7")
    micro = param(serialize_num_microbatches__tokens_per_microbatch_per_replica=384)
    bench.run("microbatches", *words, exact, *micro)
    for name, shape in (("two_batch", "batch:2"), ("two_model", "model:2")):
        mesh = param(run__mesh_shape=shape, run__mesh_devices=["cpu:0", "cpu:1"])
        layout = param(run__layout_rules="batch:batch,d_ff:model,heads:model,vocab:model")
        bench.run(name, *words, exact, *mesh, *layout)
    evaluated = param(
        train_loop__validate_every_steps=10,
        train_loop__validation_batches=2,
        train_loop__evaluate_every_steps=10,
        task_metrics__examples=10,
        keep_checkpoints__best_by="eval/accuracy",
    )
    dropout = ["--gin.DROPOUT_RATE=0.1", "--gin_param=dropout_rate = %DROPOUT_RATE"]
    bench.run("evaluated", *words, exact, *evaluated, *dropout)
    bench.run("goes_on", *words, exact, *param(run__train_steps=33), model=True)
    bench.run("changed", *words, exact, *param(run__train_steps=33, run__batch_size=8), model=True)
    weights = ["--checkpoint=$BASE/model/model.ckpt-20", "--finetune_steps=3"]
    bench.run("finetuned", *words, exact, *weights, "--export_hf=$OUT/hf")


def training_files(bench):
    """The run files that train, on data that is not cached."""
    sizes = {"TASK_FEATURE_LENGTHS": LENGTHS, "BATCH_SIZE": 4, "TRAIN_STEPS": 5}
    common = [RECIPES, TINY, MODEL, "--activation_dtype=float32"]
    text = macro(MIXTURE_OR_TASK_NAME="text_span_corruption", **sizes, DROPOUT_RATE=0.1)
    evaluated = macro(EVAL_PERIOD=3, EVAL_STEPS=1)
    bench.run("pretrain", MESH, *common, "--gin_file=runs/pretrain.gin", *text, *evaluated)
    budget = macro(MIXTURE_OR_TASK_NAME="text_prefix_lm", **sizes)
    budget += param(serialize_num_microbatches__tokens_per_microbatch_per_replica=None)
    bench.run("budget", MESH, *common, "--gin_file=runs/budget_4h.gin", TINY, *budget)
    tune = macro(MIXTURE_OR_TASK_NAME="weather_train", **(sizes | {"TRAIN_STEPS": 25}))
    tune += macro(INIT_CHECKPOINT="$BASE/model/model.ckpt-20")
    bench.run("finetune", MESH, TASKS, *common[1:], "--gin_file=runs/finetune.gin", *tune)


API = ["--use_model_api", TASKS, CACHED, "--input_sequence_length=96"]
API += ["--target_sequence_length=32", "--batch_size=4"]


def model_api(bench):
    """T5's Model API, each of its modes."""
    mixture = "--mixture_or_task=weather_train"
    exact = "--activation_dtype=float32"
    base = "--pretrained_model_dir=$BASE/model"
    train = [MODEL, "--mode=train", mixture, "--train_steps=30", TINY, "--seed=3", exact]
    bench.run("train", MESH, *API, *train)
    tune = [MODEL, "--mode=finetune", mixture, "--train_steps=5", base, exact]
    bench.run("finetune", MESH, *API, *tune)
    evaluate = [MODEL, "--mode=eval", "--mixture_or_task=weather_which_word"]
    evaluate += ["--eval_split=test", "--eval_summary_dir=$OUT/eval"]
    bench.run("eval", MESH, *API, *evaluate, model=True)
    lines = ["--input_file=$BASE/inputs", "--output_file=$OUT/found"]
    bench.run("predict", MESH, *API, MODEL, "--mode=predict", *lines, model=True)
    score = [*lines, "--target_file=$BASE/targets"]
    bench.run("score", MESH, *API, MODEL, "--mode=score", *score, model=True)
    export = "--export_dir=$OUT/exported"
    for mode in ("export_predict", "export_score"):
        bench.run(mode, MESH, *API, MODEL, f"--mode={mode}", export, model=True)


def scoring(bench):
    """Rank evaluation, and Mesh TensorFlow's own scores."""
    words = [MESH, *(word for word in SCORED if not word.startswith("--model_dir")), MODEL]
    bench.run("ranked", *words, model=True)
    every = [*words, *param(run__eval_checkpoint_step="all", eval_checkpoint_step="all")]
    bench.run("all_checkpoints", *every, *param(run__batch_size=3), model=True)
    types = param(get_variable_dtype__activation_dtype="bfloat16")
    bench.run("bfloat16", *words, *types, "--activation_dtype=bfloat16", model=True)
    live = param(mesh_eval_dataset_fn__use_cached=False)
    task = param(MIXTURE_NAME="halfhidden_which_word_score_eval")
    bench.run("hidden", *words, *live, *task, model=True)
    scores = param(scores_filename="$OUT/found")
    files = param(inputs_filename="$BASE/inputs", targets_filename="$BASE/targets")
    given = [MESH, TASKS, CACHED, MODEL, OPERATIVE, *param(run__eval_checkpoint_step=20), *scores]
    bench.run("from_file", *given, "--gin_file=score_from_file.gin", *files, model=True)
    task = param(MIXTURE_NAME="weather_which_word", run__dataset_split="validation")
    bench.run("from_task", *given, "--gin_file=score_from_task.gin", *task, model=True)


def evaluating(bench):
    """Mode eval by Mesh TensorFlow's gin file and by ours, and perplexity."""
    words = [MESH, TASKS, CACHED, MODEL, OPERATIVE, *param(MIXTURE_NAME="weather_train")]
    words += param(run__dataset_split="validation", eval_checkpoint_step=20)
    words += param(mesh_eval_dataset_fn__use_cached=True)
    decoded = param(mesh_eval_dataset_fn__num_eval_examples=8, run__batch_size=16)
    decoded += param(Bitransformer__decode__max_decode_length=6)
    bench.run("eval", *words, "--gin_file=eval.gin", *decoded, model=True)
    recipes = [MESH, RECIPES, "--gin_file=$BASE/model/operative_config.gin"]
    recipes += ["--gin_file=runs/eval.gin", *macro(MIXTURE_OR_TASK_NAME="qa_toy")]
    recipes += macro(CHECKPOINT_PATH="$BASE/model", EVAL_OUTPUT_DIR="$OUT/eval")
    bench.run("eval_run_file", *recipes, *macro(MAX_DECODE_LENGTH=5))
    perplexity = [*words, "--gin_file=perplexity_eval.gin", *param(run__perplexity_eval_steps=2)]
    bench.run("perplexity", *perplexity, model=True)


def inferring(bench):
    """Our inference, greedy, with beams and sampled; Mesh TensorFlow's; its exported models."""
    words = [MESH, TASKS, OPERATIVE, "--gin_file=runs/infer.gin"]
    words += macro(TASK_FEATURE_LENGTHS={"inputs": 96, "targets": 8})
    words += macro(CHECKPOINT_PATH="$BASE/model/model.ckpt-20", INFER_OUTPUT_DIR="$OUT/infer")
    exact = "--activation_dtype=float32"
    mixture = macro(MIXTURE_OR_TASK_NAME="weather_train")
    lines = macro(INPUT_FILE="$BASE/inputs")
    bench.run("greedy", *words, *mixture, exact)
    bench.run("beams", *words, *lines, exact, *macro(BEAM_SIZE=3, BATCH_SIZE=2))
    sampled = [*param(t0__infer__temperature=0.8), "--seed=5", "--shard_id=1", "--num_shards=2"]
    bench.run("sampled_shard", *words, *mixture, exact, *sampled)
    stock = [MESH, TASKS, CACHED, MODEL, OPERATIVE]
    decode = param(infer_checkpoint_step=20, input_filename="$BASE/inputs")
    decode += param(output_filename="$OUT/outputs", Bitransformer__decode__max_decode_length=6)
    bench.run("published", *stock, "--gin_file=infer.gin", *decode, model=True)
    for mode in ("export", "export_infer", "export_score"):
        exported = param(run__mode=mode, run__export_path="$OUT/exported", run__batch_size=2)
        bench.run(mode, *stock, *exported, model=True)


def converting(bench):
    """Each format to each, and their comparison."""
    for name, source, to in (
        ("mtf_to_hf", "$BASE/model", "hf"),
        ("mtf_to_t5x", "$BASE/model", "t5x"),
        ("mtf_to_mtf", "$BASE/model", "mtf"),
    ):
        bench.run(name, "t0", "convert", source, f"$OUT/{to}", "--to", to)
    work = {to: f"$ALL/mtf_to_{to}/{to}" for to in ("hf", "t5x")}
    for source, to in (("hf", "mtf"), ("hf", "t5x"), ("t5x", "mtf"), ("t5x", "hf")):
        words = ("convert", work[source], f"$OUT/{to}", "--to", to)
        bench.run(f"{source}_to_{to}", "t0", *words)
    scanned = ("--to", "t5x", "--scan_layers", "--dtype=bfloat16")
    bench.run("scanned", "t0", "convert", "$BASE/model", "$OUT/t5x", "--drop_slots", *scanned)
    bench.run("checked", "t0", "convert", "--check", "$BASE/model", work["hf"])
    bench.run("table", "t0", "convert", "--check", "$BASE/model", work["t5x"], "--table")


def reporting(bench):
    """Reports of an evaluation and of training."""
    results = "$BASE/evaluation"
    words = ("t0", "report", results, "--output", "$OUT/report")
    bench.run("evaluation", *words, "--title", "A title", "--note", "A note.")
    bench.run("with_curves", *words, "--metrics", "$BASE/model")
    curves = ("--metrics", "$BASE/model", "--output", "$OUT/report")
    bench.run("curves", "t0", "report", *curves)
    bench.run("nothing", "t0", "report", "$BASE/none", "--output", "$OUT/report")


def planning(bench):
    """Plans for TPU slices, as text and as JSON."""
    small = ["--gin_file=runs/pretrain.gin", TINY, "--gin_file=mesh/v3-8.gin"]
    small += macro(TASK_FEATURE_LENGTHS=LENGTHS, BATCH_SIZE=16, TRAIN_STEPS=5)
    plan = ("t0", "plan")
    bench.run("lowered", *plan, *small)
    bench.run("fast", *plan, *small, "--fast")
    bench.run("json", *plan, *small, "--fast", "--json")
    large = ("--gin_file=runs/t0_train.gin", "--gin_file=mesh/v3-512.gin", "--fast")
    bench.run("large", *plan, *large)
    bench.run("sweep", *plan, *large, "--sweep", "tpu=v3-128,v3-256", "model_parallelism=4,8")
    bench.run("mistake", *plan, *large, "--gin_param=run.train_step = 3")


def telling(bench):
    """Catalogue, lint, doctor and every command's help; what is said of mistakes."""
    bench.run("tasks", "t0", "tasks", "super_glue.*|weather.*", "--cache_dirs=$BASE/cache")
    bench.run("tasks_json", "t0", "tasks", "t0_train_score_eval", "--json")
    recipes = ("--module_import=t0.recipes",)
    bench.run("tasks_recipes", "t0", "tasks", "qa.*|mt.*|sni.*|text.*", *recipes)
    bench.run("lint", "t0", "lint", "weather.*|super_glue_cb.*|halfhidden.*", "--rows=40")
    bench.run("lint_json", "t0", "lint", "weather.*", "--vocab=$BASE/vocab.model", "--json")
    bench.run("doctor", "t0", "doctor")
    for verb in ("", "doctor", "tasks", "convert", "plan", "lint", "verify", "report"):
        bench.run(f"help_{verb or 't0'}", "t0", *filter(None, [verb]), "--help")
    bench.run("help_mesh", MESH, "--help")
    bench.run("help_cache", CACHE, "--help")
    for number, words in enumerate(MISTAKES):
        bench.run(f"mistake_{number}", *words)


MISTAKES = (
    ("t0", "taks"),
    ("t0", "tasks", "("),
    (MESH, "--modle_dir=x"),
    (MESH, "--mode=eval"),
    (MESH, TASKS, MODEL, *TRAINED[3:], "--gin_param=run.train_step = 3"),
    (
        MESH,
        TASKS,
        CACHED,
        MODEL,
        *TRAINED[3:],
        "--gin_param=run.batch_size = ('tokens_per_batch', 5)",
    ),
    (MESH, TASKS, MODEL, *TRAINED[3:]),  # not cached
    (MESH, TASKS, MODEL, "--gin_file=runs/finetune.gin", TINY),
    (MESH, "--use_model_api", MODEL),
    (MESH, "--use_model_api", "--mode=eval", MODEL),
    (MESH, TASKS, CACHED, MODEL, OPERATIVE, "--gin_file=score_eval.gin"),
    (CACHE, "--tasks=x"),
    (CACHE, "--tasks=no_such_task", TASKS, "--output_cache_dir=$OUT/cache"),
)


def dry_runs(bench):
    """The configuration that each shipped run file and each example comes to."""
    macros = {
        "MIXTURE_OR_TASK_NAME": "weather_train",
        "TASK_FEATURE_LENGTHS": LENGTHS,
        "TRAIN_STEPS": 5,
        "INIT_CHECKPOINT": "/no/model.ckpt-1",
        "CHECKPOINT_PATH": "/no/model.ckpt-1",
        "EVAL_OUTPUT_DIR": "/no/eval",
        "INFER_OUTPUT_DIR": "/no/infer",
        "MODEL_DIR": "/no/model",
    }
    for path in sorted((ROOT / "gin" / "runs").glob("*.gin")):
        text = path.read_text(encoding="utf-8")
        used = {name: value for name, value in macros.items() if f"{name} = %gin.REQ" in text}
        if path.stem.startswith("budget"):
            used = {name: macros[name] for name in ("MIXTURE_OR_TASK_NAME", "MODEL_DIR")}
        model = [] if "models/" in text else [TINY]
        words = [f"--gin_file=runs/{path.name}", *model, *macro(**used), "--dry_run"]
        bench.run(path.stem, MESH, *words)
    for path in sorted(ROOT.glob("examples/*/run.gin")):
        name = path.parent.name
        needed = {"infer": ("CHECKPOINT_PATH", "INFER_OUTPUT_DIR")}.get(name, ("MODEL_DIR",))
        if "finetune" in path.read_text(encoding="utf-8"):
            needed = ("MODEL_DIR", "INIT_CHECKPOINT", "TRAIN_STEPS")
        words = [f"--gin_file={path}", *macro(**{n: macros[n] for n in needed}), "--dry_run"]
        if name != "translation":  # gin imports a module of its folder
            bench.run(f"example_{name}", MESH, *words)
    bench.run("trained", MESH, OPERATIVE, "--gin_file=score_eval.gin", "--dry_run", "--seed=7")


def specifications(bench):
    """The facts of the specification of each command that users bring, and of T0's recipe."""
    names = {"MODEL_DIR": "$OUT/m", "EVAL_OUTPUT_DIR": "$OUT/e", "INFER_OUTPUT_DIR": "$OUT/i"}
    names |= {"PROJECT_DIR": "$BASE/project", "CHECKPOINT_PATH": "$BASE/model/model.ckpt-20"}
    guides = {name: words for name, (words, _) in t5x_guides.TRAINING.items()}
    wmt = f"--gin_file={t5x_guides.EXAMPLES}/t5_1_1_base_wmt_from_scratch.gin"
    guides["training from scratch"] = f"{wmt} --gin.MODEL_DIR=\"'${{MODEL_DIR}}'\""
    guides["evaluation"] = t5x_guides.EVALUATION
    guides["inference"] = t5x_guides.INFERENCE
    sizes = macro(d_model=32, d_ff=64, d_kv=64, num_heads=2, num_layers=2)
    for name, text in guides.items():
        words = shlex.split(string.Template(text).substitute(names))
        words += ["--tfds_data_dir=$BASE/tfds", *(sizes if "$BASE/model" in str(words) else ())]
        if name != "evaluation":
            words.append(t5x_guides.LENGTHS)
        if name == "deterministic training":
            words += macro(TRAIN_STEPS=10000)
        _save_facts(bench, name.replace(" ", "_"), *words)
    for name, words in _recipe().items():
        _save_facts(bench, f"recipe_{name}", *words, model=name == "evaluate")


def _recipe():
    """Returns the commands of T0's recipe, with a batch that fits their tiny model."""
    names = {"CACHE_DIR": "$BASE/cache", "PRETRAINED": "$BASE/model", "TPU_SIZE": "v3-8"}
    names |= {"MIXTURE_NAME": "weather_train", "EVAL_MIXTURE_NAME": "weather_eval"}
    train, evaluate = (
        [
            word
            for word in shlex.split(string.Template(text).substitute(names, **more))
            if not word.startswith(recipes.TPU_FLAGS)
        ]
        + param(run__batch_size=("tokens_per_batch", 16384))
        for text, more in (
            (recipes.TRAIN, {"MODEL_DIR": "$OUT/m", "TRAIN_STEPS": 1112200}),
            (recipes.EVALUATE, {"MODEL_DIR": "$OUT/model", "TRAIN_STEPS": 20}),
        )
    )
    return {"train": train, "evaluate": evaluate}


def _save_facts(bench, name, *words, model=False):
    bench.run(name, MESH, *words, "--save_spec=$OUT/spec.json", model=model)
    path = bench.out(name) / "spec.json"
    bench.kept[name]["files"].pop("spec.json", None)
    if path.exists():
        text = "\n".join(facts.facts(json.loads(path.read_text())))
        bench.kept[name]["facts"] = snapshot.lines(text, bench.places())


def on_tpus(bench):
    """T0's recipe for a TPU: the arguments of Mesh TensorFlow's `run`, the plan, the rehearsal."""
    for name, words in _recipe().items():
        tpu = ["--tpu=some-tpu", "--tpu_zone=z", "--gcp_project=p"]
        program, model = "tests.equality.mesh_arguments:main", name == "evaluate"
        bench.run(name, program, *words, *tpu, model=model)
        bench.run(f"{name}_listed", MESH, *words, *tpu, "--dry_run", model=model)
    few = param(run__sequence_length={"inputs": 64, "targets": 32}, run__train_steps=22)
    few += param(run__batch_size=("tokens_per_batch", 1024), tpu_mesh_shape__model_parallelism=2)
    train = _recipe()["train"]
    bench.run("exact", "t0", "plan", *train, *few, "--exact", "--json")
    bench.run("rehearsed", "t0", "rehearse", *train, *few)
    # The weights are random, without a seed.
    rehearsed = bench.kept["rehearsed"]
    random = r"\d+\.\d+(e-\d+)?( in \S+)?"
    rehearsed["out"] = [re.sub(random, "NUMBER", line) for line in rehearsed["out"]]


def going_on(bench):
    """Unfinished things of the recorded commit, each brought to its end."""
    for name, kind in unfinished.KINDS.items():
        kind.go_on(bench, name)


SECTIONS = {
    "cache": caching,
    "train": training,
    "train_files": training_files,
    "model_api": model_api,
    "score": scoring,
    "eval": evaluating,
    "infer": inferring,
    "convert": converting,
    "report": reporting,
    "plan": planning,
    "text": telling,
    "dry_run": dry_runs,
    "spec": specifications,
    "tpu": on_tpus,
    "unfinished": going_on,
}

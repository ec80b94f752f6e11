"""Mode `eval` ranks, decodes or measures each task by what it is for, in one run."""

import json
import math
import re
import shutil

import pytest

from tests.end_to_end.tiny_world import WORDS


def gin(**macros):
    return [f"--gin.{name}={value!r}" for name, value in macros.items()]


@pytest.fixture(scope="module")
def evaluate(command, pretrained):
    """Runs `runs/eval.gin` on the tiny model."""

    def run(task, out, *words, **macros):
        return command(
            f"--gin_file={pretrained}/operative_config.gin",
            "--gin_file=runs/eval.gin",
            *gin(MIXTURE_OR_TASK_NAME=task, CHECKPOINT_PATH=str(pretrained / "model.ckpt-1")),
            *gin(EVAL_OUTPUT_DIR=str(out), MAX_DECODE_LENGTH=3, **macros),
            *words,
        )

    return run


@pytest.fixture(scope="module")
def own_data(world):
    """A data folder with text, from which t0.recipes makes tasks without metrics."""
    data = world.folder / "by_kind"
    (data / "text").mkdir(parents=True)
    words = " ".join(f"much {word} today" for word in WORDS * 3)
    lines = json.dumps({"text": words}) + "\n"
    (data / "text" / "validation.jsonl").write_text(lines * 2)
    return data


def load(path):
    return json.loads(path.read_text())


def test_specification_has_the_command_that_judges_decoded_texts(evaluate, tmp_path):
    out, spec = tmp_path / "out", tmp_path / "spec.json"
    lengths = {"inputs": 64, "targets": 16}
    words = [f"--save_spec={spec}", "--engine=torch"]
    done = evaluate("weather_which_word", out, *words, TASK_FEATURE_LENGTHS=lengths)
    assert done.status == 0, done.err
    assert f"the run specification is in {spec}" in done.out
    words = load(spec)["judge"]
    assert "--gin_file=runs/eval.gin" in words
    params = [word for word in words if word.startswith("--gin_param")]
    assert params[-1] == f"--gin_param=t0.evaluation.decoded = '{out}/decoding'"
    assert not [word for word in words if word.startswith(("--save_spec", "--engine"))]
    assert not out.exists()


@pytest.mark.slow
def test_eval_ranks_score_eval_tasks(evaluate, tmp_path):
    done = evaluate("weather_eval", tmp_path, "--gin_param=t0.evaluation.examples = 5")
    assert done.status == 0, done.err
    assert "evaluation of 2 task(s): 2 ranked" in done.err
    found = load(tmp_path / "results_1.json")
    assert [entry["examples"] for entry in found["tasks"].values()] == [5, 5]
    assert found["run"]["examples"] == 5
    assert not list(tmp_path.glob("decoded_*"))


@pytest.mark.slow
def test_evaluation_limit_draws_the_same_random_rows_for_every_prompt(evaluate, tmp_path):
    limit = "--gin_param=t0.evaluation.examples = 4"
    cached = gin(USE_CACHED_TASKS=True)
    for name, words in (("all", []), ("some", [limit]), ("cached", [limit, *cached])):
        done = evaluate("weather_eval", tmp_path / name, *words)
        assert done.status == 0, done.err
    lines = {
        (run, prompt): list(
            map(
                json.loads,
                (tmp_path / run / "scores" / f"weather_{prompt}_score_eval_1.jsonl")
                .read_text()
                .splitlines(),
            )
        )
        for run in ("all", "some", "cached")
        for prompt in ("own_choices", "which_word")
    }
    drawn = [line["idx"] for line in lines["some", "own_choices"]]
    assert len(drawn) == 4
    assert drawn != [0, 1, 2, 3]
    for run in ("some", "cached"):
        for prompt in ("own_choices", "which_word"):
            assert [line["idx"] for line in lines[run, prompt]] == drawn
    every_line = {line["idx"]: line for line in lines["all", "own_choices"]}
    assert len(every_line) == 30
    facts = load(tmp_path / "some" / "results_1.json")["run"]
    assert (facts["examples"], facts["sample_seed"]) == (4, 0)
    for some in lines["some", "own_choices"]:
        every = every_line[some["idx"]]
        assert (some["idx"], some["gold"]) == (every["idx"], every["gold"])
        for a, b in zip(some["choices"], every["choices"], strict=True):
            assert a["text"] == b["text"]
            assert math.isclose(a["log_likelihood"], b["log_likelihood"], rel_tol=1e-4)


def test_evaluation_ranks_and_decodes_one_mixture(evaluate, tmp_path):
    done = evaluate("weather_both", tmp_path, "--gin_param=t0.evaluation.examples = 3")
    assert done.status == 0, done.err
    assert "1 decoded" in done.err
    assert "1 ranked" in done.err
    assert load(tmp_path / "results_1.json")["tasks"].keys() == {"weather_which_word_score_eval"}
    decoded = load(tmp_path / "decoded_1.json")["tasks"]
    assert decoded.keys() == {"weather_which_word"}
    assert decoded["weather_which_word"]["examples"] == 3
    # The decoded texts are of the rows that are ranked.
    files = ("scores/weather_which_word_score_eval_1", "predictions/weather_which_word_1")
    ranked, texts = (
        [json.loads(line)["inputs"] for line in (tmp_path / f"{f}.jsonl").read_text().splitlines()]
        for f in files
    )
    assert ranked == texts
    # TensorBoard has the metrics of both kinds.
    for name, entry in (load(tmp_path / "results_1.json")["tasks"] | decoded).items():
        for metric in entry["metrics"]:
            assert f"eval/{name}/{metric}".encode() in events(tmp_path)


def test_sharding_of_decoded_tasks_is_refused(evaluate, tmp_path):
    done = evaluate("weather_both", tmp_path, "--num_shards=2", "--shard_id=0")
    assert done.status == 2
    assert "--num_shards=2 is for ranked tasks, but weather_which_word is not" in done.err


@pytest.mark.slow
def test_merge_of_shards_equals_one_evaluation(t0_eval, server, pretrained, tmp_path):
    words = ("--tasks=weather_eval", "--lengths=inputs=40,targets=8", "--batch_tokens=300")
    done = t0_eval(pretrained, *words, f"--output={tmp_path}/whole")
    assert done.status == 0, done.err
    for shard in range(2):
        given = (f"--output={tmp_path}/shards", "--num_shards=2", f"--shard_id={shard}")
        done = t0_eval(pretrained, *words, *given)
        assert done.status == 0, done.err
    assert f"t0 merge {tmp_path}/shards --output {tmp_path}/shards" in done.out
    done = server.run("merge", f"{tmp_path}/shards", f"--output={tmp_path}/merged", program="t0")
    assert (done.status, done.out) == (0, f"{tmp_path}/merged/results_1.json\n")
    whole, merged = (load(tmp_path / name / "results_1.json") for name in ("whole", "merged"))
    assert whole["run"].pop("created") <= merged["run"].pop("created")
    assert merged == whole
    scores = sorted(path.name for path in (tmp_path / "whole" / "scores").iterdir())
    assert len(scores) == 2
    for name in scores:
        one, other = ((tmp_path / run / "scores" / name) for run in ("whole", "merged"))
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.slow
def test_decoded_answers_of_ranked_tasks_equal_decoding(t0_eval, pretrained, tmp_path):
    """The answers to ranked inputs are what the plain task's decoding predicts."""
    words = ("--lengths=inputs=40,targets=16", "--limit=6", "--decode_answers")
    name = "weather_which_word_score_eval"
    done = t0_eval(pretrained, f"--tasks={name}", f"--output={tmp_path}/ranked", *words)
    assert done.status == 0, done.err
    done = t0_eval(pretrained, "--tasks=weather_which_word", f"--output={tmp_path}/plain", *words)
    assert done.status == 0, done.err
    lines = (tmp_path / "ranked" / "answers" / f"{name}_1.jsonl").read_text().splitlines()
    answers = [json.loads(line)["answer"] for line in lines]
    (plain,) = (tmp_path / "plain" / "predictions").glob("weather_which_word_1.jsonl")
    predicted = [json.loads(line)["prediction"] for line in plain.read_text().splitlines()]
    assert len(answers) == 6
    for answer, other in zip(answers, predicted, strict=True):
        assert answer
        assert other.startswith(answer) or answer.startswith(other)
    decoded = load(tmp_path / "ranked" / "results_1.json")["tasks"][name]["decoded"]
    assert decoded["examples"] == 6
    assert "no punctuation" in decoded["normalisation"]
    report = load(tmp_path / "ranked" / "report" / "report.json")
    assert report["ways"][0]["decoded"] == decoded["exact_match"]


def test_sharding_with_shard_id_only_is_refused(t0_eval, pretrained, tmp_path):
    done = t0_eval(pretrained, "--tasks=weather_eval", f"--output={tmp_path}", "--shard_id=4")
    assert done.status == 2
    assert "got --shard_id=4 and --num_shards=None; expected both" in done.err


def events(folder):
    return b"".join(path.read_bytes() for path in folder.glob("events.out.tfevents.*"))


def measured(command, pretrained, own_data, out, *words):
    return command(
        "--module_import=t0.recipes",
        f"--data_dir={own_data}",
        f"--gin_file={pretrained}/operative_config.gin",
        "--gin_file=runs/eval.gin",
        *gin(CHECKPOINT_PATH=str(pretrained), EVAL_OUTPUT_DIR=str(out), BATCH_SIZE=3),
        *words,
        tasks=False,
    )


@pytest.mark.slow
def test_eval_measures_perplexity_of_tasks_without_metrics(
    command, pretrained, own_data, tmp_path, server
):
    words = gin(MIXTURE_OR_TASK_NAME="text_span_corruption")
    lengths = gin(TASK_FEATURE_LENGTHS={"inputs": 24, "targets": 16})
    done = measured(command, pretrained, own_data, tmp_path, *words, *lengths)
    assert done.status == 0, done.err
    entry = load(tmp_path / "perplexity_1.json")["tasks"]["text_span_corruption"]
    metrics = entry["metrics"]
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["nats_per_token"]))
    assert 4 < metrics["nats_per_token"] < 9  # about log 512 for a model of one step
    assert entry["tokens"] > 10
    assert "nats a token" in done.out
    assert b"eval/text_span_corruption/nats_per_token" in events(tmp_path)
    report = server.run("report", str(tmp_path), f"--output={tmp_path}/report", program="t0")
    assert report.status == 0, report.err
    assert "nats_per_token" in report.out


@pytest.mark.exhaustive
def test_perplexity_measured_twice_is_the_same(command, pretrained, own_data, tmp_path):
    words = gin(MIXTURE_OR_TASK_NAME="text_span_corruption")
    words += gin(TASK_FEATURE_LENGTHS={"inputs": 24, "targets": 16})
    found = []
    for name in ("first", "again"):
        done = measured(command, pretrained, own_data, tmp_path / name, *words)
        assert done.status == 0, done.err
        found.append(load(tmp_path / name / "perplexity_1.json")["tasks"])
    assert found[0] == found[1]


def test_span_corruption_without_lengths_is_refused_at_the_start(
    command, pretrained, own_data, tmp_path
):
    words = gin(MIXTURE_OR_TASK_NAME="text_span_corruption")
    done = measured(command, pretrained, own_data, tmp_path, *words)
    assert done.status == 2
    assert "needs a length of inputs. TASK_FEATURE_LENGTHS (run.sequence_length) is None" in (
        done.err
    )
    assert "--gin.TASK_FEATURE_LENGTHS=\"{'inputs': 512, 'targets': 114}\"" in done.err


@pytest.fixture(scope="module")
def t0_eval(server, world):
    def run(checkpoint, *words):
        return server.run("eval", str(checkpoint), *words, program="t0", cwd=world.folder)

    return run


@pytest.fixture(scope="module")
def in_other_formats(server, pretrained, world):
    for kind in ("hf", "t5x"):
        target = str(world.folder / f"pretrained_{kind}")
        vocabulary = f"--vocab={world.folder}/vocab.model"
        words = ("convert", str(pretrained), target, f"--to={kind}", "--drop_slots", vocabulary)
        done = server.run(*words, program="t0")
        assert done.status == 0, done.err
    # What transformers 5 saves: no SentencePiece model.
    saved = world.folder / "pretrained_json"
    shutil.copytree(world.folder / "pretrained_hf", saved)
    (saved / "spiece.model").unlink()
    return world.folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["pretrained", "pretrained_hf", "pretrained_t5x", "pretrained_json"]
)
def test_evaluation_of_unknown_tasks_converts_nothing(t0_eval, in_other_formats, tmp_path, name):
    words = ("--tasks=wether_eval", f"--output={tmp_path}/out")
    done = t0_eval(in_other_formats / name, *words)
    assert done.status == 2
    assert "unknown task or mixture 'wether_eval'. Did you mean" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_evaluation_of_a_checkpoint_in_any_format(
    t0_eval, pretrained, in_other_formats, tmp_path, world
):
    # The first from the cache, the others rendered and tokenized on the way.
    caches = [f"--cache_dirs={world.cache}"]
    found = {}
    for name in (
        "pretrained/model.ckpt-1.index",
        "pretrained_hf",
        "pretrained_t5x",
        "pretrained_json",
    ):
        out = tmp_path / name.replace("/", "_")
        words = ("--tasks=weather_eval", f"--output={out}", "--limit=6", *caches)
        caches = []
        done = t0_eval(in_other_formats / name, *words)
        assert "Path not found" not in done.err
        assert done.status == 0, done.err
        assert "At most 6 examples of each task: a random sample" in done.out
        assert f"report: {out}/report/report.html" in done.out
        assert (out / "report" / "report.html").exists()
        results = load(out / "results_1.json")
        assert results["run"]["source"] == str(in_other_formats / name)
        assert results["run"]["name"] == str(in_other_formats / name)
        found[name] = {task: entry["metrics"] for task, entry in results["tasks"].items()}
    first, *others = found.values()
    assert len(first) == 2
    assert others == [first, first, first]


@pytest.mark.slow
def test_evaluation_tasks_by_regular_expression(t0_eval, pretrained, tmp_path):
    words = ("--tasks=weather_(which_word|retell)", f"--output={tmp_path}", "--limit=2")
    done = t0_eval(pretrained, *words, "--lengths=inputs=40,targets=8", "--batch_tokens=200")
    assert done.status == 0, done.err
    assert "1 plain tasks are skipped" in done.err
    assert re.search(r"weather_retell +accuracy.* 2$", done.out, re.I | re.M), done.out
    assert "weather " in done.out
    assert load(tmp_path / "results_1.json")["run"]["sequence_length"] == {
        "inputs": 40,
        "targets": 8,
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks=wether_eval"], "unknown task or mixture 'wether_eval'. Did you mean"),
        (["--tasks=weather_eval", "--split=dev"], "no task of weather_eval has a split 'dev'"),
        (["--limit=0"], "--limit is 0; expected a whole number from 1"),
        (["--lengths=input=3"], "--lengths: 'input=3' is not a length"),
    ],
)
def test_evaluation_argument_error_has_no_traceback(t0_eval, pretrained, tmp_path, words, said):
    done = t0_eval(pretrained, *words, f"--output={tmp_path}")
    assert done.status == 2
    assert "Traceback" not in done.err
    assert said in done.err


def test_evaluation_without_vocabulary_file_writes_nothing(t0_eval, pretrained, tmp_path):
    words = ["--tasks=weather_eval", "--vocab=/no/such.model", f"--output={tmp_path}/out"]
    done = t0_eval(pretrained, *words)
    assert done.status == 2
    assert "vocabulary not found: /no/such.model" in done.err
    assert not (tmp_path / "out").exists()


def test_evaluation_of_folder_without_checkpoint_is_refused(t0_eval, tmp_path):
    done = t0_eval(tmp_path, f"--output={tmp_path}/out")
    assert done.status == 2
    assert "has no checkpoint; expected model.ckpt-STEP.index" in done.err
    assert not (tmp_path / "out").exists()


def test_t0_eval_with_one_length_keeps_the_default_of_the_other(t0_eval, pretrained, tmp_path):
    words = ("--tasks=weather_eval", f"--output={tmp_path}", "--limit=1", "--lengths=inputs=40")
    done = t0_eval(pretrained, *words)
    assert done.status == 0, done.err
    lengths = load(tmp_path / "results_1.json")["run"]["sequence_length"]
    assert lengths == {"inputs": 40, "targets": 256}


def test_t0_eval_output_in_a_bucket_is_refused(t0_eval, pretrained):
    done = t0_eval(pretrained, "--tasks=weather_eval", "--output=gs://bucket/out")
    assert done.status == 2
    assert "--output=gs://bucket/out: expected a local folder" in done.err

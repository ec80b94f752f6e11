"""`gin/runs/infer.gin` and T5's `infer.gin` by command, on the model of the recipe's test."""

import json

import pytest

LENGTHS = "{'inputs': 96, 'targets': 8}"


@pytest.fixture
def infer(command, model_dir):
    """Runs `runs/infer.gin` into a folder, with further macros; returns what came of it."""

    def run(output, *flags, status=0, interrupt_at=None, **macros):
        named = {
            "MIXTURE_OR_TASK_NAME": "'weather_train'",
            "TASK_FEATURE_LENGTHS": LENGTHS,
            "CHECKPOINT_PATH": f"'{model_dir}/model.ckpt-20'",
            "INFER_OUTPUT_DIR": f"'{output}'",
            **macros,
        }
        done = command(
            f"--gin_file={model_dir}/operative_config.gin",
            "--gin_file=runs/infer.gin",
            *(f"--gin.{name}={value}" for name, value in named.items()),
            *flags,
            interrupt_at=interrupt_at,
        )
        assert done.status == status, done.err
        return done

    return run


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_inference_of_a_mixture_writes_a_file_per_task(infer, tmp_path, world):
    done = infer(tmp_path)
    for task in ("weather_which_word", "weather_own_choices"):
        lines = lines_of(tmp_path / f"{task}_20.jsonl")
        assert [line["idx"] for line in lines] == list(range(8))
        assert all(line["score"] < 0 for line in lines)
        assert all(
            set(line) == {"idx", "inputs", "prediction", "targets", "score"} for line in lines
        )
        assert f"{task}_20.jsonl: 8 predictions, " in done.out
        assert json.loads((tmp_path / f"{task}_20.run.json").read_text())["examples"] == 8
    rows = [json.loads(line) for line in (world.folder / "data/weather/test.jsonl").open()]
    assert [row["place"] in line["inputs"] for row, line in zip(rows, lines, strict=True)] == [
        True
    ] * 8
    assert "8 predictions, finished before" in infer(tmp_path).out
    assert "beam_size 1, now 4" in infer(tmp_path, "--gin.BEAM_SIZE=4", status=2).err


@pytest.mark.slow
def test_inference_sharded_or_interrupted_gives_same_predictions(infer, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"Report number {n}: much rain\n" for n in range(9)))
    settings = {"INPUT_FILE": f"'{tmp_path}/in.txt'", "BEAM_SIZE": 3, "BATCH_SIZE": 2}
    infer(tmp_path / "whole", **settings)
    whole = lines_of(tmp_path / "whole" / "in_20.jsonl")
    assert [line["inputs"] for line in whole] == (tmp_path / "in.txt").read_text().splitlines()
    done = infer(tmp_path / "stopped", status=130, interrupt_at="restored", **settings)
    assert "interrupted: predictions of whole batches are saved" in done.err
    assert not list((tmp_path / "stopped").glob("*.jsonl"))
    infer(tmp_path / "stopped", **settings)
    for name in ("in_20.jsonl", "in_20.run.json"):
        stopped, straight = (tmp_path / folder / name for folder in ("stopped", "whole"))
        assert stopped.read_bytes() == straight.read_bytes()
    shards = []
    for shard in range(2):
        infer(tmp_path / "shards", f"--shard_id={shard}", "--num_shards=2", **settings)
        shards += lines_of(tmp_path / "shards" / f"in_20-{shard:05d}-of-00002.jsonl")
    assert [line["prediction"] for line in sorted(shards, key=lambda line: line["idx"])] == [
        line["prediction"] for line in whole
    ]


def test_inference_equals_that_of_t5(infer, tmp_path, command, model_dir):
    (tmp_path / "in").write_text("much rain today\nmuch snow in Oslo today\n")
    infer(tmp_path, INPUT_FILE=f"'{tmp_path}/in'", **{"t0.infer.add_eos": True})
    done = command(
        f"--model_dir={model_dir}",
        f"--gin_file={model_dir}/operative_config.gin",
        "--gin_file=infer.gin",
        "--gin_param=infer_checkpoint_step = 20",
        f"--gin_param=input_filename = '{tmp_path}/in'",
        f"--gin_param=output_filename = '{tmp_path}/out'",
        "--gin_param=Bitransformer.decode.max_decode_length = 8",
        f"--gin_param=run.sequence_length = {LENGTHS}",
    )
    assert done.status == 0, done.err
    ours = [line["prediction"] for line in lines_of(tmp_path / "in_20.jsonl")]
    assert (tmp_path / "out-20").read_text().splitlines() == ours
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out-20"]


def test_inference_bad_input_is_one_line(infer, tmp_path, command, model_dir):
    done = infer(tmp_path, INPUT_FILE=f"'{tmp_path}/nope.txt'", status=2)
    assert "input file not found" in done.err
    assert "Traceback" not in done.err
    (tmp_path / "bad.jsonl").write_text('{"inputs": "a"}\n{"input": "b"}\n')
    done = infer(tmp_path, INPUT_FILE=f"'{tmp_path}/bad.jsonl'", status=2)
    assert "unknown field 'input'. Did you mean 'inputs'?" in done.err
    assert "bad.jsonl, line 2" in done.err
    done = infer(tmp_path, "--shard_id=2", "--num_shards=2", status=2)
    assert "infer.shard_id is 2" in done.err
    done = command(
        f"--model_dir={model_dir}",
        f"--gin_file={model_dir}/operative_config.gin",
        "--gin_param=run.mode = 'perplexity_eval'",
        "--num_shards=2",
    )
    assert "--num_shards belongs to inference" in done.err


def test_inference_row_without_label_has_no_target(infer, tmp_path):
    settings = {
        "MIXTURE_OR_TASK_NAME": "'halfhidden_which_word'",
        "MIXTURE_OR_TASK_SPLIT": "'validation'",
    }
    infer(tmp_path, **settings)
    lines = lines_of(tmp_path / "halfhidden_which_word_20.jsonl")
    assert [line["idx"] for line in lines] == list(range(12))
    assert [line["idx"] for line in lines if "targets" in line] == [1, 3, 5, 7, 9, 11]

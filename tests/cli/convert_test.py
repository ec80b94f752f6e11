"""The command `t0 convert`."""

import re
import signal
import subprocess
import sys

import pytest
from huggingface_hub import ModelCard

from t0.cli.main import main
from tests.checkpoints.tiny_checkpoints import (
    V11,
    model_shape,
    slots,
    train_pieces,
    weights,
    with_sentinels,
    write_mtf,
)
from tests.reports.made_up_evaluations import Evaluation, random_lines


def run(*words):
    return main(["convert", *map(str, words)])


def test_checkpoint_conversion_to_hf_and_t5x_passes_check(source, tmp_path, capsys):
    assert run(source, tmp_path / "hf", "--to", "hf") == 0
    out, err = capsys.readouterr()
    assert re.search(r"mtf -> hf: \d+ tensors, .* GB; \d+ left out", out)
    assert "optimizer slots are left out" in err
    assert run(source, tmp_path / "t5x", "--to", "t5x") == 0
    assert run("--check", source, tmp_path / "t5x") == 0
    assert run("--check", source, tmp_path / "hf") == 0
    out, err = capsys.readouterr()
    assert re.search(r"A is mtf, B is hf: (\d+) of \1 tensors are the same", out)
    assert "optimizer's state; it is not compared" in err


def test_checkpoint_conversion_to_hf_writes_a_model_card(source, tmp_path, capsys):
    made = Evaluation(tmp_path / "m" / "eval", step=1000, split="validation")
    made.add("rte_0", "super_glue/rte", "p", random_lines(30, [2], 1)).write()
    flags = ["--base_model=google/t5-v1_1-small", "--license=mit", "--results", made.folder]
    assert run(source, tmp_path / "hf", "--to", "hf", *flags) == 0
    data = ModelCard.load(tmp_path / "hf" / "README.md").data
    assert (data.base_model, data.license) == ("google/t5-v1_1-small", "mit")
    assert {result.dataset_type for result in data.eval_results} == {"super_glue"}
    assert run("--check", source, tmp_path / "hf") == 0
    made.step = 5
    (made.folder / "results_1000.json").unlink()
    made.run["step"] = 5
    made.write()
    for words, message in (
        (["--to", "hf", *flags], "but the checkpoint is of step 1,000"),
        (["--to", "t5x", "--license=mit"], "--license is for the model card of --to hf"),
        (["--to", "hf", "--base_model=/m/t0"], "expected a model on the hub"),
    ):
        with pytest.raises(SystemExit):
            run(source, tmp_path / "new", *words)
        assert message in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_checkpoint_comparison_lists_differing_tensors(source, tmp_path, capsys):
    tensors = weights(V11)
    tensors["shared/embedding"][5, 6] += 0.25
    tensors["decoder/rms_norm/scale"] = tensors["decoder/rms_norm/scale"].astype("float16")
    del tensors["decoder/logits/kernel"]
    other = write_mtf(tmp_path / "other", tensors)
    assert run("--check", source, other) == 1
    rows = dict(
        line.split("\t", 1) for line in capsys.readouterr().out.splitlines() if "\t" in line
    )
    assert rows["shared/embedding"] == "values\t0.25"
    assert rows["decoder/logits/kernel"] == "only in A\tnan"
    assert rows["decoder/rms_norm/scale"].endswith("float32 and float16")
    assert len(rows) == 3


def test_checkpoint_conversion_table_names_every_tensor(source, tmp_path, capsys):
    assert run(source, tmp_path / "hf", "--to", "hf", "--table") == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if "\t" in line]
    written = {row[0]: row[1:] for row in rows if row[0] != "-"}
    assert set(written) == set(weights(V11))
    assert written["shared/embedding"][:2] == ["128x32", "float32"]
    assert re.fullmatch("[0-9a-f]{16}", written["shared/embedding"][2])
    assert {row[4] for row in rows if row[0] == "-"} == set(slots(weights(V11)))


def test_checkpoint_conversion_takes_the_sources_tokenizer_or_vocab(tmp_path):
    pieces = train_pieces(tmp_path / "pieces")
    own = with_sentinels(pieces)
    source = write_mtf(tmp_path / "source", weights(model_shape(vocabulary=256)))
    assert run(source, tmp_path / "hf", "--to", "hf") == 0
    assert not (tmp_path / "hf" / "spiece.model").exists()
    assert run(source, tmp_path / "t5x", "--to", "t5x", "--vocab", own) == 0
    assert run(tmp_path / "t5x", tmp_path / "mtf", "--to", "mtf") == 0
    assert (tmp_path / "mtf" / "spiece.model").read_bytes() == own.read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "out", "--to", "hf"], "nowhere does not exist"),
        (["source", "out"], "--to must name the format of"),
        (["source", "out", "--to", "hdf5"], "unknown format 'hdf5'"),
        (["source", "out", "--to", "hf", "--step", "7"], "no checkpoint of step 7; it has 1000"),
        (["source", "out", "--to", "hf", "--dtype", "float8"], "unknown dtype 'float8'"),
        (["source", "out", "--to", "hf", "--vocab", "no.model"], "--vocab no.model is not a file"),
        (["source", "source", "--to", "hf"], "exists and is not empty"),
        (
            ["source", "out", "--to", "hf", "--vocabulary_rows", "0"],
            "expected a whole number from 1",
        ),
    ],
)
def test_checkpoint_conversion_user_error_writes_no_output(
    source, tmp_path, monkeypatch, capsys, words, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        run(*words)
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("t0 convert: ")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_checkpoint_conversion_restores_the_signal_handler(source, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    run(source, tmp_path / "hf", "--to", "hf")
    with pytest.raises(SystemExit):
        run(source, tmp_path / "hf", "--to", "t5x")
    assert signal.getsignal(signal.SIGTERM) is before


def test_checkpoint_conversion_stopped_by_sigterm_leaves_no_files(source, tmp_path):
    code = (
        "import sys, time\nfrom t0.checkpoints import FORMATS\n"
        "wait = lambda self: (print('writing', flush=True), time.sleep(60))\n"
        "FORMATS['hf'].finish = wait\n"
        "from t0.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "convert", source, tmp_path / "new" / "out", "--to", "hf"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    assert list((tmp_path / "new").iterdir())
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143
    assert list((tmp_path / "new").iterdir()) == []

"""`t0 eval --reproduce`: T0's held-out datasets next to the published values; a tiny model."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "fixtures" / "data"
OFFLINE = {"HF_HUB_OFFLINE": "1"}
SMALL = ("--lengths=inputs=32,targets=16", "--batch_tokens=8192")


@pytest.fixture
def reproduce(server, world, pretrained):
    def run(*words, checkpoint=pretrained, data=SAMPLES):
        folders = {"T0_DATA_DIR": str(data), "T0_VOCAB": f"{world.folder}/vocab.model"}
        words = ["eval", *([str(checkpoint)] if checkpoint else []), *map(str, words)]
        return server.run(*words, "--reproduce", program="t0", environment=OFFLINE | folders)

    return run


@pytest.fixture
def sample(tmp_path):
    """A data folder with one of the samples, of short choices and few prompts."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "winogrande").symlink_to(SAMPLES / "winogrande")
    return tmp_path / "data"


def rows_of(folder):
    content = json.loads((folder / "reproduction_1.json").read_text())
    assert content["sources"]
    return {row["title"]: row for row in content["rows"]}


@pytest.mark.slow
def test_reproduction_compares_sample_with_published_values(reproduce, sample, tmp_path):
    words = ("--skip_absent", f"--output={tmp_path}", "--limit=2", *SMALL)
    done = reproduce(*words, data=sample)
    assert done.status == 0, done.err
    assert "skipped, with --skip_absent:\n" in done.err
    rows = rows_of(tmp_path)
    found = rows["Winogrande"]
    results = json.loads((tmp_path / "results_1.json").read_text())["tasks"]
    each = [task["metrics"]["accuracy"] for task in results.values()]
    assert found["prompts"] == len(each) == 5
    assert found["mean"] == pytest.approx(sum(each) / 5)
    assert rows["COPA"]["mean"] is None
    beside = found["models"]["T0-3B"]
    assert beside["value"] == 51.0
    assert beside["difference"] == pytest.approx(found["mean"] - 51.0)
    assert beside["within"] == (found["low"] <= 51.0 <= found["high"])
    (line,) = [line for line in done.out.splitlines() if line.startswith("Winogrande  ")]
    assert line.split()[:4] == ["Winogrande", "5", "2", f"{found['mean']:.1f}"]
    assert "not evaluated" in done.out
    assert (tmp_path / "report" / "report.html").exists()


def test_reproduction_missing_data_lists_downloads(reproduce, tmp_path):
    done = reproduce(f"--output={tmp_path}/out")
    assert done.status == 2
    assert "6 of 11 splits are missing" in done.err
    assert f"# super_glue/wic, validation, 638 rows: {SAMPLES}/super_glue/wic" in done.err
    assert "hf://datasets/aps/super_glue" in done.err
    assert "https://cs.rochester.edu/nlp/rocstories/" in done.err
    assert "--skip_absent" in done.err
    assert not (tmp_path / "out").exists()


def test_reproduction_without_checkpoint_and_list_of_downloads(reproduce, tmp_path):
    assert "no checkpoint: t0 eval CHECKPOINT" in reproduce(checkpoint=None).err
    done = reproduce("--downloads", checkpoint=None, data=tmp_path)
    assert done.status == 0
    assert done.out.count("# ") == 12  # of Story Cloze also how to ask for it
    assert f"mkdir -p {tmp_path}/anli/default && python -c 'import datasets" in done.out


@pytest.mark.exhaustive
def test_reproduction_of_every_dataset_on_this_machine(reproduce, shared_data, tmp_path):
    done = reproduce(
        *("--skip_absent", f"--output={tmp_path}", "--limit=20", "--batch_tokens=8192"),
        "--lengths=inputs=32,targets=256",
        data=shared_data / "data",
    )
    assert done.status == 0, done.err
    rows = rows_of(tmp_path)
    missing = {title for title, row in rows.items() if row["mean"] is None}
    assert missing == {"StoryCloze", "COPA"}
    assert rows["ANLI R1, ANLI R2, ANLI R3"]["prompts"] == 45
    assert rows["mean of 9 of 11"]["models"].keys() == {"T0-3B", "T0-11B"}


def test_reproduction_former_program_names_the_new_command():
    done = subprocess.run(
        [ROOT / "bin" / "reproduce_t0_eval"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is now: t0 eval CHECKPOINT --reproduce" in done.stderr


def test_reproduction_refuses_other_tasks(reproduce):
    assert "--reproduce evaluates t0_eval" in reproduce("--tasks=weather_eval").err

import argparse
import json
import re
import sys
from pathlib import Path

import pytest

from t0.cli import doctor
from t0.cli.main import main
from t0.testing import train_vocabulary

VERSIONS = {
    "tensorflow": "2.15.1",
    "tensorflow-text": "2.15.0",
    "mesh-tensorflow": "0.1.21",
    "t5": "0.9.4",
    "seqio": "0.0.20",
    "gin-config": "0.5.0",
    "promptsource": "0.1.0",
    "sentencepiece": "0.2.0",
    "protobuf": "4.25.9",
    "numpy": "1.26.4",
    "pyarrow": "23.0.1",
    "datasets": "5.0.1",
    "apache-beam": "2.72.0",
    "tensorflow-metadata": "1.15.0",
    "setuptools": "80.10.2",
}


def install(monkeypatch, **changed):
    """Pretends that these versions are installed; None takes a package away."""
    seen = VERSIONS | {name.replace("_", "-"): version for name, version in changed.items()}
    look = {name: version for name, version in seen.items() if version}.get
    monkeypatch.setattr(doctor, "installed_version", look)


def complaints(report):
    return [problem["what"] for problem in report["wrong"]]


@pytest.fixture
def script(tmp_path):
    """Writes console scripts as pip does; gives the folder and the function that writes one."""

    def write(name, module):
        path = tmp_path / name
        path.write_text(f"#!/bin/python\nimport re\nfrom {module} import main\nmain()\n")
        path.chmod(0o755)
        return path

    write.folder = str(tmp_path)
    return write


def test_doctor_finds_nothing_wrong_in_this_environment(capsys):
    status = main(["doctor"])
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "nothing is wrong"
    assert status == 0
    assert len(out.splitlines()) <= 24
    assert max(map(len, out.splitlines())) <= 130
    for package in doctor.PACKAGES:
        assert f"{package} " in out
    assert "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model" in out
    assert "CPU cores" in out


def test_doctor_json_report_has_packages_devices_and_disk(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["wrong"] == []
    assert {row["name"] for row in report["packages"]} == doctor.PACKAGES.keys()
    assert report["devices"]["cores"] >= 1
    assert report["disk"]["free_bytes"] > 0


@pytest.mark.parametrize(
    ("package", "version", "line"),
    [
        ("protobuf", "5.29.0", "protobuf 5.29.0: expected >=4.25.2,<5"),
        ("sentencepiece", "0.2.1", "sentencepiece 0.2.1: expected >=0.2,<0.2.1"),
        ("tensorflow_metadata", "1.16.1", "tensorflow-metadata 1.16.1: expected "),
        ("tensorflow_text", "2.16.1", "tensorflow-text 2.16.1: expected >=2.15,<2.16"),
        ("numpy", "2.0.0", "numpy 2.0.0: expected >=1.23.5,<2"),
        ("setuptools", "81.0.0", "setuptools 81.0.0: expected <81"),
        ("tensorflow", "2.16.1", "tensorflow 2.16.1: expected >=2.15.1,<2.16"),
        ("pyarrow", "24.0.0", "pyarrow 24.0.0: expected >=21,<24"),
        ("promptsource", None, "promptsource is not installed: expected ==0.1.0"),
    ],
)
def test_doctor_wrong_package_version_is_one_line(monkeypatch, capsys, package, version, line):
    install(monkeypatch, **{package: version})
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line in printed for printed in lines) == 1
    assert "wrong: 1" in lines
    marked = [
        printed for printed in lines if re.search(rf"! {package.replace('_', '-')} ", printed)
    ]
    assert len(marked) == 1


def test_doctor_accepts_seqio_nightly_for_seqio(monkeypatch):
    install(monkeypatch, seqio=None, seqio_nightly="0.0.18.dev20250227")
    assert complaints(doctor.examine()) == []


def test_doctor_finds_unsupported_python_version(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    assert any("expected 3.11 or 3.10" in what for what in complaints(doctor.examine()))
    monkeypatch.setattr(sys, "version_info", (3, 10, 12))
    assert not any("Python" in what for what in complaints(doctor.examine()))


def test_doctor_remedy_for_a_wheel_is_pip_install(monkeypatch):
    monkeypatch.setattr(doctor, "is_checkout", lambda: False)
    install(monkeypatch, protobuf="5.29.0", promptsource=None)
    remedies = [problem["do"] for problem in doctor.examine()["wrong"]]
    assert remedies == [
        "pip install --no-deps --ignore-requires-python promptsource==0.1.0",
        "pip install --no-deps 'protobuf>=4.25.2,<5'",
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A SentencePiece model of 60 pieces."""
    text = ["the cat sat on the mat and looked at the hat"] * 40
    return train_vocabulary(tmp_path_factory.mktemp("vocabulary") / "tiny.model", text)


def test_doctor_reports_vocabulary_path_and_size(monkeypatch, model):
    import sentencepiece

    monkeypatch.setenv("T0_VOCAB", str(model))
    report = doctor.examine()
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model)).get_piece_size()
    assert report["vocabulary"] == {"path": str(model), "from": "T0_VOCAB", "pieces": pieces}
    assert report["wrong"] == []
    assert any(f"{pieces} pieces" in line for line in doctor.render(report))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), (b"", "not a SentencePiece model"), (b"<html>", "not a Sentence")],
)
def test_doctor_finds_unreadable_vocabulary(monkeypatch, tmp_path, content, message):
    path = tmp_path / "spiece.model"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("T0_VOCAB", str(path))
    (what,) = complaints(doctor.examine())
    assert str(path) in what
    assert message in what


def test_doctor_finds_command_of_another_package_on_path(monkeypatch, script):
    path = script("seqio_cache_tasks", "seqio.scripts.cache_tasks_main")
    monkeypatch.setenv("PATH", script.folder)
    (what,) = complaints(doctor.examine())
    assert what == (
        f"seqio_cache_tasks ({path}) runs seqio.scripts.cache_tasks_main: "
        "expected t0.cli.cache_tasks"
    )


def test_doctor_reads_command_module_from_its_script(script):
    path = script("t0", "t0.cli.main")
    row = doctor.command("t0", path=script.folder)
    assert row == {"name": "t0", "script": str(path), "module": "t0.cli.main"}


def test_doctor_reports_missing_command(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    row = doctor.command("t0", path=str(tmp_path))
    assert (row["script"], row["module"]) == (None, None)


def test_doctor_lists_gpus_of_nvidia_smi(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB'\necho 'NVIDIA H200, 143771 MiB'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.gpus() == ["NVIDIA H200, 143771 MiB"] * 2
    tool.write_text("#!/bin/sh\necho 'no driver' >&2\nexit 9\n")
    assert doctor.gpus() == []


def test_doctor_shows_the_tpu_of_tpu_name(monkeypatch):
    monkeypatch.setenv("TPU_NAME", "my-pod")
    assert any("TPU_NAME=my-pod" in line for line in doctor.render(doctor.examine()))


def test_doctor_works_without_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    assert doctor.main(parser.parse_args([])) == 0


TEMPLATES = """
templates:
  a1: !Template
    answer_choices: null
    id: a1
    jinja: "Is it good? {{text}} ||| {{label}}"
    metadata: !TemplateMetadata
      choices_in_prompt: null
      metrics: []
      original_task: null
    name: good
    reference: ""
"""


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    for place in ("glue/rte", "sciq/default", "reviews"):
        (tmp_path / "data" / place).mkdir(parents=True)
        (tmp_path / "data" / place / "train.jsonl").write_text('{"text": "x", "label": 1}\n')
    (tmp_path / "data" / "reviews" / "templates.yaml").write_text(TEMPLATES)
    (tmp_path / "data" / "empty").mkdir()
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def test_doctor_lists_datasets_and_own_prompts_of_data_folder(data_folder):
    report = doctor.examine()
    assert report["data"] == [
        {
            "path": str(data_folder),
            "datasets": ["glue/rte", "reviews", "sciq"],
            "own_prompts": {"reviews": 1},
        }
    ]
    assert complaints(report) == []
    lines = [line.strip() for line in doctor.render(report)]
    at = lines.index(f"data       {data_folder}")
    assert lines[at + 1 : at + 3] == [
        "3 datasets: glue/rte, reviews, sciq",
        "own prompts: reviews (1)",
    ]


def test_doctor_finds_missing_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "nowhere"))
    report = doctor.examine()
    (what,) = complaints(report)
    assert str(tmp_path / "nowhere") in what
    assert report["data"] == []


def test_doctor_finds_invalid_own_prompts(data_folder):
    (data_folder / "reviews" / "templates.yaml").write_text("templates: [")
    (what,) = complaints(doctor.examine())
    assert "templates.yaml" in what


def test_doctor_report_on_real_data_fits_one_screen(shared_data, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", str(shared_data / "data"))
    report = doctor.examine()
    assert {"super_glue/cb", "glue/mrpc", "sciq"} <= set(report["data"][0]["datasets"])
    assert len(doctor.render(report)) <= 24


def test_doctor_default_vocabulary_equals_that_of_the_tasks():
    # Read as text: importing t0.tasks takes TensorFlow, which the doctor must not need.
    source = Path(doctor.__file__).parents[1] / "tasks" / "vocabulary.py"
    assert f'DEFAULT_VOCABULARY = "{doctor.DEFAULT_VOCABULARY}"' in source.read_text()

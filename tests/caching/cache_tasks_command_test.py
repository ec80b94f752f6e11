"""The command seqio_cache_tasks: its flags, its help, its errors."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from t0.cli import cache_tasks
from t0.config.starter_settings import StarterSettings
from t0.errors import UserError


def stock_flags():
    """Flag name -> kind, read from the source of the command that ours stands for."""
    folder = Path(importlib.util.find_spec("seqio").origin).parent
    source = (folder / "scripts" / "cache_tasks_main.py").read_text()
    return {n: k for k, n in re.findall(r'flags\.DEFINE_(\w+)\(\s*"(\w+)"', source)}


def test_seqio_cache_tasks_has_every_seqio_flag():
    stock = stock_flags()
    assert len(stock) == 15
    ours = {name: kind for kind, name, *_ in cache_tasks.FLAGS}
    assert {name: ours.get(name) for name in stock} == stock
    added = {"data_dir", "vocab", "num_workers", "splits", "skip_absent_splits"}
    added |= {"max_dropped_share", "allow_hidden_labels", "gin_param", "skip_bad_rows"}
    added |= {"dry_run", "quiet"}
    assert ours.keys() - stock.keys() == added


def test_seqio_cache_tasks_help_needs_no_tensorflow():
    code = (
        "import sys; from t0.cli import cache_tasks; cache_tasks.main(['x', '--help']);"
        "assert not {'tensorflow', 'seqio', 't5', 'numpy'} & set(sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    for name in [*stock_flags(), "data_dir", "num_workers"]:
        assert re.search(rf"--(\[no\])?{name}\b", shown.stdout), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks=a"], "--output_cache_dir=DIR is required"),
        (["--output_cache_dir=/x", "--task=a"], "'--task'. Did you mean '--tasks'"),
        (["--output_cache_dir=/x", "a"], "--tasks=a"),
        (["--output_cache_dir=/x", "--num_workers=two"], "num_workers"),
        (["--output_cache_dir=/x", "--output_format=csv"], "arrayrecord"),
    ],
)
def test_seqio_cache_tasks_command_line_mistakes_are_refused(arguments, message):
    with pytest.raises(UserError, match=re.escape(message)):
        cache_tasks.parse(["seqio_cache_tasks", *arguments])


def test_seqio_cache_tasks_flags_become_the_request(monkeypatch):
    from t0 import caching
    from t0.caching import CacheSelection, RecordOptions, Setup

    given = []
    monkeypatch.setattr(caching, "cache", lambda *parts, **more: given.extend([parts, more]))
    monkeypatch.setattr(caching.workers, "quiet", lambda: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    cache_tasks.main(
        [
            *("x", "--tasks=a,b", "--excluded_tasks=c", "--output_cache_dir=/o"),
            *("--module_import=m", "--module_import=n", "--min_shards=0", "--enable_char_counts"),
            *("--data_dir=/d", "--splits=train", "--num_workers=3", "--gin_param=sni.seed=1"),
        ]
    )
    (request, options, setup), more = given
    assert more == {"num_workers": 3, "pipeline_options": ()}
    assert request == CacheSelection(
        "/o",
        tasks=["a", "b"],
        excluded_tasks=["c"],
        splits=["train"],
        tasks_additional_cache_dirs=[],
    )
    assert options == RecordOptions(min_shards=0, enable_char_counts=True)
    assert setup == Setup(module_import=["m", "n"], data_dir=["/d"], gin_param=["sni.seed=1"])


@pytest.mark.parametrize(
    ("arguments", "module", "message"),
    [
        (
            ["--tasks=toy_linse"],
            "tests.caching.toy_caching_tasks",
            "unknown task or mixture 'toy_linse'.*toy_lines",
        ),
        (
            ["--tasks=toy_lines"],
            "tests.caching.toy_caching_taks",
            "no module 'tests.caching.toy_caching_taks'",
        ),
    ],
)
def test_seqio_cache_tasks_user_mistake_is_one_error_message(
    toy, tmp_path, monkeypatch, capfd, arguments, module, message
):
    words = ["seqio_cache_tasks", f"--output_cache_dir={tmp_path}", f"--module_import={module}"]
    monkeypatch.setattr(sys, "argv", [*words, *arguments])
    with pytest.raises(SystemExit) as end:
        cache_tasks.console_entry_point()
    assert end.value.code == 2
    errors = capfd.readouterr().err
    assert re.fullmatch(f"seqio_cache_tasks: .*{message}.*\n", errors)
    assert list(tmp_path.iterdir()) == []


def test_seqio_cache_tasks_gin_param_binds_task_settings():
    import gin

    from t0.caching import Setup, workers
    from t0.tasks.instruction_tasks import InstructionSettings

    module = ["t0.tasks.instruction_tasks"]
    try:
        workers.prepare(Setup(module, gin_param=["sni.seed = 3", "sni.languages = ('French',)"]))
        assert InstructionSettings() == InstructionSettings(100, ("French",), 3)
        with pytest.raises(UserError, match="sni has no parameter 'sead'.*Did you mean seed"):
            workers.prepare(Setup(module, gin_param=["sni.sead = 3"]))
    finally:
        gin.clear_config()


def test_cache_command_reads_the_lengths_of_a_starter_folder(tmp_path, monkeypatch):
    settings = StarterSettings("", "ours", None, {"inputs": 48, "targets": 16})
    (tmp_path / "starter.json").write_text(settings.text())
    calls = []
    monkeypatch.setattr("t0.caching.cache", lambda *args, **_: calls.append(args))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for folder in (tmp_path / "cache", tmp_path.parent / "elsewhere"):
        cache_tasks.main(["seqio_cache_tasks", f"--output_cache_dir={folder}"])
    assert [options.lengths for _, options, _ in calls] == [(48, 16), (1024, 256)]

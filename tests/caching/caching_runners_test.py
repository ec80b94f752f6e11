"""The runners: worker processes and Apache Beam give what this process gives."""

import socket
import subprocess
import sys

import pytest
import tensorflow as tf

from t0.caching import beam_runner, running, work_plan
from t0.caching.cache_plan import CachePlan, TaskSplit
from t0.errors import UserError

PROMPTED = ("weather_plain", "weather_plain_score_eval", "weather_chance")


def files(root):
    return {
        str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()
    }


@pytest.mark.slow
def test_beam_caching_writes_the_same_bytes(cache_here, tmp_path):
    tasks = ("toy_lines", "toy_function")
    cache_here(tmp_path / "here", *tasks)
    beam = ["--runner=DirectRunner", "--direct_num_workers=1"]
    outcomes = cache_here(tmp_path / "beam", *tasks, pipeline_options=beam)
    assert files(tmp_path / "beam") == files(tmp_path / "here")
    assert sorted(str(o.split) for o in outcomes) == [
        "toy_function split 'train'",
        "toy_lines split 'train'",
        "toy_lines split 'validation'",
    ]


def test_beam_caching_reports_worker_failures(cache_here, tmp_path):
    beam = ["--runner=DirectRunner", "--direct_num_workers=1"]
    with pytest.raises(UserError, match="toy_nothing split 'train': the data has rows"):
        cache_here(tmp_path, "toy_nothing", "toy_function", pipeline_options=beam)
    assert [p.name for p in tmp_path.iterdir()] == ["toy_function"]


@pytest.mark.slow
def test_caching_killed_worker_error_names_task_and_split(cache_here, tmp_path):
    with pytest.raises(UserError) as error:
        cache_here(tmp_path, "toy_dies", workers=1)
    assert "SIGKILL" in str(error.value)
    assert "memory ran out" in str(error.value)
    assert "toy_dies split 'train'" in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("workers", "rows", "chosen"),
    [(None, 10, 0), (None, 10**6, 3), (None, None, 3), (2, 10, 2), (0, 10**6, 0)],
)
def test_caching_number_of_workers(monkeypatch, workers, rows, chosen):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    plan = CachePlan((TaskSplit("a", "train", "/a", rows),), {}, {})
    assert running.chosen_workers(plan, workers) == chosen


@pytest.mark.parametrize(
    ("options", "beam"),
    [
        ([], False),
        (["--runner=DirectRunner"], False),
        (["--runner=FlinkRunner"], True),
        (["--runner=DirectRunner", "--direct_num_workers=2"], True),
    ],
)
def test_beam_caching_selected_by_pipeline_options(options, beam):
    assert running.on_beam(options) == beam


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_caching_workers_give_the_same_prompted_records(
    with_data, cache_here, tmp_path, monkeypatch, workers
):
    cache_here(tmp_path / "one", *PROMPTED)
    monkeypatch.setattr(work_plan, "MIN_ROWS", 200)
    cache_here(tmp_path / "other", *PROMPTED, workers=workers)
    assert files(tmp_path / "one") == files(tmp_path / "other")


def test_caching_to_an_object_store(with_data, cache_here, tmp_path, monkeypatch):
    """Through TensorFlow's file system, of which one in memory stands for gs://."""
    out = f"ram://{tmp_path.name}/out"
    cache_here(tmp_path / "local", *PROMPTED, "toy_function")
    monkeypatch.setattr(work_plan, "MIN_ROWS", 200)
    cache_here(out, *PROMPTED, "toy_function")
    for name, content in files(tmp_path / "local").items():
        with tf.io.gfile.GFile(f"{out}/{name}", "rb") as file:
            assert file.read() == content, name
    assert sorted(name.strip("/") for name in tf.io.gfile.listdir(out)) == sorted(
        [*PROMPTED, "toy_function"]
    )


@pytest.mark.parametrize(
    "options",
    [
        ["--runner=DirectRunner", "--direct_running_mode=in_memory"],
        pytest.param(
            [
                *("--runner=DirectRunner", "--direct_running_mode=multi_processing"),
                "--direct_num_workers=2",
            ],
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            ["--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["in_memory", "multi_processing", "portable"],
)
def test_beam_caching_of_prompted_tasks(with_data, cache_here, tmp_path, monkeypatch, options):
    monkeypatch.setattr(work_plan, "MIN_ROWS", 200)
    tasks = (*PROMPTED, "toy_function")
    cache_here(tmp_path / "here", *tasks)
    cache_here(tmp_path / "beam", *tasks, pipeline_options=options)
    assert files(tmp_path / "here") == files(tmp_path / "beam")


def test_beam_caching_counts_rows_while_the_pipeline_runs(
    with_data, cache_here, tmp_path, monkeypatch
):
    counted = []
    monkeypatch.setattr(running, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(work_plan, "MIN_ROWS", 200)
    monkeypatch.setattr(
        running.ProgressLine, "count", lambda self, number, **rest: counted.append(number)
    )
    beam = ["--runner=DirectRunner", "--direct_num_workers=1"]
    runs = cache_here(tmp_path, "weather_plain", splits=["train"], pipeline_options=beam)
    assert sum(counted) == runs[0].stats["examples"] == 1203
    assert len([number for number in counted if number]) > 1


@pytest.mark.slow
def test_beam_caching_through_a_job_service(cache_here, tmp_path):
    from apache_beam.runners.portability import local_job_service

    service = local_job_service.LocalJobServicer()
    endpoint = f"--job_endpoint=localhost:{service.start_grpc_server(0)}"
    beam = ["--runner=PortableRunner", endpoint, "--environment_type=LOOPBACK"]
    tasks = ("toy_lines", "toy_function")
    cache_here(tmp_path / "here", *tasks)
    try:
        cache_here(tmp_path / "beam", *tasks, pipeline_options=beam)
    finally:
        service.stop()
    assert files(tmp_path / "beam") == files(tmp_path / "here")


@pytest.mark.parametrize("silent", [False, True], ids=["nobody listens", "a server is silent"])
def test_beam_caching_without_a_job_service_is_one_line(cache_here, tmp_path, monkeypatch, silent):
    monkeypatch.setattr(beam_runner, "SECONDS_TO_ANSWER", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        if not silent:
            server.close()
        beam = ["--runner=PortableRunner", f"--job_endpoint={endpoint}"]
        with pytest.raises(UserError, match="no Beam job service answered within 1 s") as error:
            cache_here(tmp_path, "toy_lines", pipeline_options=beam)
    assert f"--job_endpoint={endpoint}: " in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_caching_prompt_worker_imports_no_tensorflow():
    code = (
        "import sys, t0.caching.workers, t0.caching.prompted_rows, t0.caching.beam_runner;"
        "heavy = {'tensorflow', 'seqio', 't5'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""Caching on a Beam cluster: a job service and a pool of worker processes, as on Flink and Spark."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from t0.caching import beam_runner, work_plan
from t0.errors import UserError
from tests.caching.caching_runners_test import PROMPTED, files

TASKS = (*PROMPTED, "toy_lines", "toy_function")


def free_port():
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def cluster(with_data, tmp_path):
    """Yields Beam's options for a job service and a pool of workers, and the pool's process.

    Beam's own job service asks the pool for one worker at a time.
    """
    # The pool starts its workers as `python`.
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ports = [free_port(), free_port()]
    programs = [
        ("runners.portability.local_job_service_main", f"--port={ports[0]}"),
        ("runners.worker.worker_pool_main", f"--service_port={ports[1]}"),
    ]
    with contextlib.ExitStack() as stack:
        started = []
        for module, flag in programs:
            log = stack.enter_context(open(tmp_path / f"{module}.log", "w"))
            command = [sys.executable, "-m", f"apache_beam.{module}", flag]
            process = subprocess.Popen(
                command, env={**os.environ, "PATH": search}, stdout=log, stderr=log
            )
            stack.callback(end, process)
            started.append(process)
        for port in ports:
            wait_for(lambda port=port: socket.create_connection(("localhost", port), 1).close())
        yield (
            [
                "--runner=PortableRunner",
                f"--job_endpoint=localhost:{ports[0]}",
                "--environment_type=EXTERNAL",
                f"--environment_config=localhost:{ports[1]}",
            ],
            psutil.Process(started[1].pid),
        )


def end(process):
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    process.kill()
    process.wait()


def wait_for(connect, seconds=60):
    until = time.monotonic() + seconds
    while True:
        try:
            return connect()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@pytest.mark.slow
def test_beam_cluster_caching_writes_the_same_bytes(cluster, cache_here, tmp_path, monkeypatch):
    options, _ = cluster
    monkeypatch.setattr(work_plan, "MIN_ROWS", 200)
    cache_here(tmp_path / "here", *TASKS)
    cache_here(tmp_path / "beam", *TASKS, pipeline_options=options)
    assert files(tmp_path / "beam") == files(tmp_path / "here")


@pytest.mark.slow
def test_beam_cluster_without_a_worker_ends_and_the_same_command_finishes(
    cluster, cache_here, tmp_path, monkeypatch
):
    options, pool = cluster
    monkeypatch.setattr(work_plan, "MIN_ROWS", 20)
    cache_here(tmp_path / "here", *TASKS)
    cache_here(tmp_path / "beam", TASKS[0])
    published = files(tmp_path / "beam")

    def kill_workers():
        while not list(tmp_path.glob("beam/unfinished-parts*/*")):
            time.sleep(0.02)
        for worker in pool.children():
            worker.kill()

    killer = threading.Thread(target=kill_workers)
    killer.start()
    with pytest.raises(UserError) as error:
        cache_here(tmp_path / "beam", *TASKS, pipeline_options=options)
    killer.join()
    assert "\n" not in str(error.value)
    assert published.items() <= files(tmp_path / "beam").items()
    cache_here(tmp_path / "beam", *TASKS, pipeline_options=options)
    assert files(tmp_path / "beam") == files(tmp_path / "here")


def test_beam_worker_with_other_code_is_refused_with_both_versions(monkeypatch):
    here = beam_runner.code_version()
    maker = beam_runner._Make(None)
    monkeypatch.setattr(beam_runner, "code_version", lambda: "0.1.0 (0123456789ab)")
    with pytest.raises(UserError) as error:
        maker.setup()
    assert here in str(error.value)
    assert "0.1.0 (0123456789ab)" in str(error.value)

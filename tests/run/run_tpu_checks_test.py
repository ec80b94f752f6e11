"""Each fault that the checks before a run on a TPU find, and how to fix it."""

import dataclasses
import socket
import subprocess
import sys

import pytest

from t0.config import parse
from t0.errors import UserError
from t0.run import tpu_checks
from t0.run.tpu_checks import Machine, Node, find_faults, refuse_faults

SE = "tpu-vm-tf-2.15.1-se"
# A TPU VM that --tpu=local can use, and worker 0 of a slice for --tpu=NAME.
LOCAL = Machine(
    tpu="local",
    chips=4,
    tensorflow="2.15.1",
    drives_tpu=True,
    on_google=True,
    project="p",
    zone="z",
    worker="0",
    accelerator_type="v3-8",
)
NAMED = dataclasses.replace(
    LOCAL, tpu="my-tpu", accelerator_type="v3-32", environment={"TPU_LOAD_LIBRARY": "0"}
)
READY = Node(accelerator_type="v3-32", state="READY", runtime="tpu-vm-tf-2.15.1-pod-se")
SLICE = dataclasses.replace(NAMED, node=READY)
PJRT = {"NEXT_PLUGGABLE_DEVICE_USE_C_API": "true"}

# (the good machine, what is different, what the message holds)
FAULTS = [
    (LOCAL, {"chips": 0}, "this machine has no TPU.*without --tpu the run uses"),
    (LOCAL, {"tensorflow": "2.17.0"}, f"TensorFlow 2.17.0 is installed; expected 2.15.*{SE}"),
    (LOCAL, {"drives_tpu": False}, "cannot drive a TPU.*bin/setup --system-tensorflow"),
    (
        LOCAL,
        {"environment": PJRT},
        "variable NEXT_PLUGGABLE_DEVICE_USE_C_API makes.*90807.*unset NEXT",
    ),
    (LOCAL, {"image": "tpu-vm-tf-2.15.1-pjrt"}, f"image tpu-vm-tf-2.15.1-pjrt.*{SE}"),
    (
        LOCAL,
        {"accelerator_type": "v5litepod-8"},
        "is a v5litepod-8.*v2, v3, v4.*v3-32: europe-west4-a;",
    ),
    (LOCAL, {"accelerator_type": "v3-32"}, "one of the 4 hosts of a v3-32.*--tpu=NAME"),
    (LOCAL, {"environment": {"TPU_LOAD_LIBRARY": "0"}}, "unset TPU_LOAD_LIBRARY"),
    (NAMED, {"environment": {}}, "not set.*export TPU_LOAD_LIBRARY=0"),
    (NAMED, {"environment": {"TPU_LOAD_LIBRARY": "1"}}, "is 1.*export TPU_LOAD_LIBRARY=0"),
    (NAMED, {"worker": "3"}, "worker 3 of the slice.*ssh my-tpu --worker=0"),
    (NAMED, {"missing": ("oauth2client",)}, r"not installed: oauth2client.*bin/setup --with tpu"),
    (NAMED, {"project": "", "on_google": False}, "no metadata server.*Set --gcp_project, or"),
    (NAMED, {"zone": "", "project": ""}, "Set --gcp_project and --tpu_zone"),
]


def check(machine):
    refuse_faults(machine.tpu, list(find_faults(machine)))


@pytest.mark.parametrize(("good", "changed", "message"), FAULTS)
def test_tpu_checks_find_faults_of_the_machine(good, changed, message):
    check(good)
    with pytest.raises(UserError, match=f"--tpu={good.tpu} cannot start: .*{message}"):
        check(dataclasses.replace(good, **changed))


def test_tpu_checks_report_all_faults_together():
    machine = Machine(tpu="my-tpu", missing=("googleapiclient", "oauth2client"))
    with pytest.raises(UserError) as caught:
        check(machine)
    first, *lines = str(caught.value).splitlines()
    assert first == "--tpu=my-tpu cannot start: "
    assert [line.split()[0] for line in lines] == ["-", "-"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"trouble": "HTTP 404: no node"},
            "'my-tpu' cannot be looked up in project p, zone z .HTTP.*v4-8: us-central2-b",
        ),
        ({"state": "CREATING"}, "is CREATING, not READY. Wait"),
        ({"state": "PREEMPTED"}, "is PREEMPTED, not READY. Delete it and create it again"),
        (
            {"runtime": "tpu-vm-tf-2.15.1-pod-pjrt"},
            "pod-pjrt makes TensorFlow use the TPU through PJRT",
        ),
        ({"accelerator_type": "v6e-8"}, "the TPU is a v6e-8"),
        ({"endpoints": (("127.0.0.1", 9),)}, "1 of the 1 TensorFlow servers.*127.0.0.1:9"),
    ],
)
def test_tpu_checks_find_faults_of_the_node(changed, message):
    check(SLICE)
    with pytest.raises(UserError, match=message):
        check(dataclasses.replace(NAMED, node=dataclasses.replace(READY, **changed)))


def test_tpu_checks_of_server_by_grpc_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        tpu = f"grpc://127.0.0.1:{server.getsockname()[1]}"
        check(Machine(tpu))
    with pytest.raises(UserError, match="1 of the 1 TensorFlow servers do not answer"):
        check(Machine(tpu))


def test_tpu_checks_do_not_import_tensorflow():
    code = (
        "import sys\n"
        "from t0.errors import UserError\n"
        "from t0.cli.mesh_transformer import main\n"
        "try:\n"
        "    main(['run', '--tpu=local', '--model_dir=/m'])\n"
        "except UserError as error:\n"
        "    print(error)\n"
        "print('tensorflow' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    *lines, heavy = done.stdout.splitlines()
    (line,) = lines
    assert line.startswith("--tpu=local cannot start: this machine has no TPU (no /dev/accel0).")
    assert line.endswith("without --tpu the run uses this machine")
    assert heavy == "False"


BUCKETS = {"model_dir": "gs://b/model", "cores": 32, "checkpoint": "gs://b/ckpt"}


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Checks a run on a v3-32 whose gin parameters are given."""
    from t0.compat import seqio

    vocabulary = tmp_path / "v.model"
    vocabulary.touch()
    monkeypatch.setenv("T0_VOCAB", str(vocabulary))
    before = list(seqio.get_global_cache_dirs())
    seqio.set_global_cache_dirs(["gs://b/cache"])

    def check(*params, found=SLICE, **changed):
        parse.parse(["dataset.gin"], list(params))
        return tpu_checks.check_run(found, **{**BUCKETS, **changed})

    yield check
    seqio.set_global_cache_dirs(before)


@pytest.mark.parametrize(
    ("params", "changed", "message"),
    [
        ([], {"model_dir": None}, "no model directory.*--model_dir=gs://"),
        ([], {"cores": 8}, "mesh has 8 cores.*is a v3-32 with 32.*--gin_file=mesh/v3-32.gin"),
        (
            [],
            {"model_dir": "/disk/m"},
            r"4 hosts of the slice share no disk.*one path is local: --model_dir \(/disk",
        ),
        ([], {"checkpoint": "/disk/c"}, "the checkpoint to start from ./disk/c.*gsutil"),
        (["pack_dataset.use_custom_ops = True"], {}, "use_custom_ops = False'"),
    ],
)
def test_tpu_checks_find_faults_of_the_run(configured, params, changed, message):
    configured()
    with pytest.raises(UserError, match=message):
        configured(*params, **changed)


def test_tpu_checks_find_local_cache_and_missing_vocabulary(configured, monkeypatch):
    from t0.compat import seqio

    seqio.set_global_cache_dirs(["/disk/cache"])
    monkeypatch.setenv("T0_VOCAB", "/absent/v.model")
    with pytest.raises(UserError) as caught:
        configured()
    assert "cache folder 1 (/disk/cache)" in str(caught.value)
    assert "there is no vocabulary /absent/v.model" in str(caught.value)


def test_tpu_checks_allow_local_disk_on_one_host(configured):
    configured(found=LOCAL, cores=8, model_dir="/disk/m")
    with pytest.raises(UserError, match="mesh has 32 cores"):
        configured(found=LOCAL, model_dir="/disk/m")


def test_tpu_checks_allow_one_core_per_v4_chip(configured):
    found = dataclasses.replace(LOCAL, accelerator_type="v4-8")
    for cores in (8, 4):
        configured(found=found, cores=cores)
    with pytest.raises(UserError, match="mesh has 2 cores"):
        configured(found=found, cores=2)

"""Facts about a TPU, from an imitated metadata server and TPU API on this machine."""

import pytest

from t0.run import tpu_checks
from t0.run.tpu_checks import Machine
from tests.run import imitated_google


@pytest.fixture
def google(monkeypatch):
    with imitated_google.serving(imitated_google.tpu_vm()) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def test_tpu_facts_of_machine_outside_google(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    machine = tpu_checks.read_machine("my-tpu", zone="z", project="p", root=tmp_path)
    assert not machine.on_google
    assert not machine.on_tpu_vm
    assert (machine.zone, machine.project, machine.chips) == ("z", "p", 0)
    assert machine.tensorflow.startswith("2.15")


def test_cloud_metadata_server_that_does_not_answer(monkeypatch, tmp_path):
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    assert not tpu_checks.read_machine("local", root=tmp_path).on_google


def test_tpu_facts_of_tpu_vm(google, tmp_path):
    (tmp_path / "dev").mkdir()
    for number in range(4):
        (tmp_path / "dev" / f"accel{number}").touch()
    machine = tpu_checks.read_machine("my-tpu", root=tmp_path)
    assert machine.on_google
    assert machine.on_tpu_vm
    assert (machine.project, machine.zone) == ("my-project", "europe-west4-a")
    assert (machine.worker, machine.accelerator_type, machine.chips) == ("0", "v3-32", 4)
    assert not machine.drives_tpu  # the package index's TensorFlow
    given = tpu_checks.read_machine("my-tpu", zone="other", project="another", root=tmp_path)
    assert (given.project, given.zone) == ("another", "other")


def test_tpu_facts_from_tpu_env_attribute(google, tmp_path):
    google.metadata["instance/attributes/tpu-env"] = (
        "ACCELERATOR_TYPE: 'v4-16'\nRUNTIME_VERSION: 'tpu-vm-tf-2.15.1-pod-pjrt'\nWORKER_ID: '1'\n"
    )
    machine = tpu_checks.read_machine("local", root=tmp_path)
    assert (machine.worker, machine.accelerator_type) == ("1", "v4-16")
    assert machine.image == "tpu-vm-tf-2.15.1-pod-pjrt"


@pytest.mark.parametrize("content", [b"x" * 5000 + b"libtpu.so\0", b"TPU_LIBRARY_PATH"])
def test_tpu_library_libtpu_is_detected(tmp_path, content):
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    assert tpu_checks.loads_libtpu(path)
    path.write_bytes(b"nothing of that kind")
    assert not tpu_checks.loads_libtpu(path)


def test_tpu_node_facts_from_cloud_api(google):
    endpoints = [("10.0.0.2", 8470), ("10.0.0.3", "8471")]
    google.nodes["my-tpu"] = imitated_google.node(
        endpoints=endpoints, tensorflowVersion="tpu-vm-tf-2.15.1-pod-se"
    )
    found = tpu_checks.read_node(tpu_checks.read_machine("my-tpu"))
    assert not found.trouble
    assert (found.accelerator_type, found.state) == ("v3-32", "READY")
    assert found.endpoints == (("10.0.0.2", 8470), ("10.0.0.3", 8471))
    assert found.runtime == "tpu-vm-tf-2.15.1-pod-se"
    assert google.asked[-1] == "v1/projects/my-project/locations/europe-west4-a/nodes/my-tpu"


def test_tpu_node_of_one_host_has_one_endpoint(google):
    google.nodes["one"] = {"state": "READY", "ipAddress": "10.0.0.2", "port": "8470"}
    assert tpu_checks.read_node(tpu_checks.read_machine("one")).endpoints == (("10.0.0.2", 8470),)


@pytest.mark.parametrize(
    ("answer", "trouble"), [(404, "HTTP 404: no node my-tpu"), (403, "HTTP 403: no node my-tpu")]
)
def test_tpu_node_that_is_missing(google, answer, trouble):
    google.nodes["my-tpu"] = answer
    assert tpu_checks.read_node(tpu_checks.read_machine("my-tpu")).trouble == trouble


def test_tpu_node_lookup_without_credentials(google, monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    assert (
        "no credentials were found"
        in tpu_checks.read_node(tpu_checks.read_machine("my-tpu")).trouble
    )


@pytest.mark.parametrize("answer", ["[1]", "not JSON"])
def test_tpu_node_lookup_with_invalid_answer(google, answer):
    google.metadata["instance/service-accounts/default/token"] = answer
    assert tpu_checks.read_node(tpu_checks.read_machine("my-tpu")).trouble


def test_tpu_name_kinds_and_host_counts():
    named = {"local": False, "my-tpu": True, "grpc://10.0.0.2:8470": False}
    assert {tpu: Machine(tpu).is_named for tpu in named} == named
    assert [tpu_checks.hosts_of(kind) for kind in ("v3-8", "v3-32", "v4-16", "v9-1")] == [
        1,
        4,
        2,
        0,
    ]

"""T0's published command names a gin file on gs://; what is said if it cannot be read."""

import pytest

from tests.end_to_end.command_lines import TRAIN, message
from tests.helpers.buckets.faults import Once
from tests.helpers.buckets.object_store import READ, Bucket

PUBLISHED = "gs://t5-data/pretrained_models/t5.1.1.lm100k.xl/operative_config.gin"
FAULTS = {
    "refused": "unreachable: ",
    "401": "forbidden: ",
    "403": "forbidden: ",
    "404": "not found: ",
}


@pytest.fixture(params=FAULTS)
def served(request, bucket):
    """The environment in which a bucket answers in one way, and the kind of the answer."""
    token = {"401": "expired", "403": "other"}.get(request.param, "good")
    bucket.reset({"t5-data": Bucket(tokens={"good": {READ}})}, {"good", "other"})
    if request.param == "refused":
        bucket.set_faults(Once("reset", times=10**6))
    return bucket.environment(token), FAULTS[request.param]


@pytest.mark.parametrize("verb", ["train", "plan"])
def test_gin_file_in_unreadable_bucket_suggests_local_one(server, tmp_path, served, verb):
    environment, kind = served
    words = [word for word in TRAIN if "models/" not in word]
    words = [*words, f"--gin_file={PUBLISHED}", f"--model_dir={tmp_path}/m"]
    if verb == "train":
        done = server.run(*words, program="t5_mesh_transformer", environment=environment)
        text = message(done)
    else:
        done = server.run("plan", *words, program="t0", environment=environment)
        assert done.status == 2, done.err
        assert "Traceback" not in done.err
        text = " ".join(done.err.split())
    assert f"{PUBLISHED}: {kind}" in text
    assert "--gin_file=models/t5.1.1.lm100k.xl.gin" in text
    assert not (tmp_path / "m").exists()

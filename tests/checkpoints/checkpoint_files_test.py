import shutil

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from t0.checkpoints import checkpoint_files, conversion
from t0.checkpoints.bundle import BundleWriter
from t0.errors import UserError
from t0.files.any_path import any_path
from t0.run import run_files

import tensorflow.compat.v1 as tf  # isort: skip (after t0, which quietens it)
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState  # isort: skip


def save(folder, step, **variables):
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in {"global_step": np.int64(step), **variables}.items():
            tf.Variable(value, name=name.replace("__", "/"), use_resource=False)
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver()
        return saver.save(session, str(folder / "model.ckpt"), global_step=step)


EMBEDDING = np.zeros([256, 4], np.float32)


def test_checkpoint_steps_with_complete_files(tmp_path):
    for step in (1_000, 0, 20):
        save(tmp_path, step)
    (tmp_path / "model.ckpt-30.data-00000-of-00001").touch()
    (tmp_path / "model.ckpt-40.meta").touch()
    (tmp_path / "model.ckpt-50.index.tempstate").touch()
    assert checkpoint_files.steps(str(tmp_path)) == [0, 20, 1_000]


@pytest.mark.parametrize(
    ("wanted", "steps"),
    [
        ("all", [0, 20, 1_000]),
        (None, [1_000]),
        (-1, [1_000]),
        (20, [20]),
        (1_112_200, [1_000]),
        (10, [0]),
        ([19, 21, 900], [20, 1_000]),
        ((0,), [0]),
    ],
)
def test_checkpoint_steps_selection(tmp_path, wanted, steps):
    for step in (0, 20, 1_000):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    assert checkpoint_files.select_steps(str(tmp_path), wanted) == steps


@pytest.mark.parametrize("wanted", ["latest", 3.5, ["1"]])
def test_checkpoint_step_selection_mistakes_are_refused(tmp_path, wanted):
    with pytest.raises(UserError, match="no checkpoint .* in .*"):
        checkpoint_files.select_steps(str(tmp_path), 3)
    (tmp_path / "model.ckpt-3.index").touch()
    with pytest.raises(UserError, match="expected a step, a list, or 'all'"):
        checkpoint_files.select_steps(str(tmp_path), wanted)


# What is in the file `checkpoint`, beside whole checkpoints of steps 5 and 20; its latest step.
NAMES = {
    None: 20,
    b"": 20,
    b"\xff": 20,
    b"nonsense": 20,
    b'model_checkpoint_path: "model.ckpt-5"': 5,
    b'model_checkpoint_path: "model.ckpt-30"': 20,
    b'model_checkpoint_path: "\\000x"': 20,
}


@pytest.mark.parametrize("content", NAMES)
def test_latest_checkpoint_is_the_named_or_else_the_newest(tmp_path, content):
    assert checkpoint_files.latest(str(tmp_path)) is None
    for step in (5, 20):
        save(tmp_path, step)
    assert checkpoint_files.latest(str(tmp_path)) == str(tmp_path / "model.ckpt-20")
    (tmp_path / "checkpoint").unlink()
    if content is not None:
        (tmp_path / "checkpoint").write_bytes(content)
    found = checkpoint_files.latest(str(tmp_path))
    assert found == str(tmp_path / f"model.ckpt-{NAMES[content]}")
    assert checkpoint_files.named(str(tmp_path)) == (found if NAMES[content] == 5 else None)


@pytest.mark.parametrize("content", NAMES)
def test_folder_stands_for_its_latest_checkpoint_in_every_reader(tmp_path, content):
    folder = str(tmp_path)
    assert checkpoint_files.latest_step(folder) is None
    for step in (5, 20):
        save(tmp_path, step)
    (tmp_path / "checkpoint").unlink()
    if content is not None:
        (tmp_path / "checkpoint").write_bytes(content)
    step = NAMES[content]
    assert checkpoint_files.latest_step(folder) == step
    assert checkpoint_files.select_steps(folder, None) == [step]
    assert checkpoint_files.select_steps(folder, -1) == [step]
    assert checkpoint_files.select_steps(folder, "all") == [5, 20]
    assert checkpoint_files.select_steps(folder, 19) == [20]
    assert conversion.recognise(folder) == ("mtf", f"{folder}/model.ckpt-{step}")
    assert conversion.recognise(folder, step=20) == ("mtf", f"{folder}/model.ckpt-20")
    assert run_files.step_of_checkpoint(folder) == step


def test_latest_checkpoint_of_a_copied_folder_is_the_copy(tmp_path):
    for step in (5, 20):
        save(tmp_path / "run", step)
    named = tmp_path / "run" / "model.ckpt-5"
    (tmp_path / "run" / "checkpoint").write_text(f'model_checkpoint_path: "{named}"')
    assert checkpoint_files.latest_step(tmp_path / "run") == 5
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    copy = tmp_path / "copy" / "model.ckpt-5"
    assert conversion.recognise(tmp_path / "copy") == ("mtf", str(copy))
    copy.with_name("model.ckpt-5.index").unlink()
    with pytest.raises(UserError, match=f"names {named} as .* another folder; .*model.ckpt-20$"):
        checkpoint_files.latest_step(tmp_path / "copy")
    (tmp_path / "copy" / "checkpoint").write_text('model_checkpoint_path: "gs://b/model.ckpt-5"')
    with pytest.raises(UserError, match="names gs://b/model.ckpt-5 as .* another folder"):
        checkpoint_files.latest_step(tmp_path / "copy")
    for path in tmp_path.glob("run/model.ckpt-5.*"):
        path.rename(path.with_name(path.name.replace("ckpt-5", "best")))
    (tmp_path / "run" / "checkpoint").write_text('model_checkpoint_path: "model.best"')
    with pytest.raises(UserError, match="names .*/model.best as .*; expected .*model.ckpt-20. Nam"):
        checkpoint_files.latest_step(tmp_path / "run")


def test_latest_checkpoint_is_the_newer_of_both_engines(tmp_path):
    for step in (5, 20):
        save(tmp_path, step)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-5"')
    (tmp_path / "torch.ckpt-10").mkdir()
    (tmp_path / "torch.ckpt-10" / "resume.json").write_text("{}")
    folder = str(tmp_path)
    assert checkpoint_files.select_steps(folder, -1, also=[10]) == [10]
    assert conversion.recognise(folder) == ("torch", f"{folder}/torch.ckpt-10")
    with pytest.raises(UserError, match="newer .*PyTorch engine, torch.ckpt-10: .*_step = 5"):
        checkpoint_files.select_steps(folder, None)
    assert checkpoint_files.select_steps(folder, 20) == [20]
    (tmp_path / "checkpoint").unlink()
    assert checkpoint_files.select_steps(folder, None) == [20]
    assert conversion.recognise(folder) == ("mtf", f"{folder}/model.ckpt-20")


# Contents of the file `checkpoint`, and whether TensorFlow finds a path in them.
STATES = {
    r'model_checkpoint_path: "model.ckpt-5"': True,
    'all_model_checkpoint_paths: "a"\nmodel_checkpoint_path : "b" # "c"\n#\n': True,
    "# a comment at the end\nmodel_checkpoint_path: 'one \"two\"' ' three'  # x": True,
    'model_checkpoint_path:"a";model_checkpoint_path:"b",': True,
    'model_checkpoint_path: "\\303\\251\\x61\\"\\\\ \\t\\101é#"': True,
    'all_model_checkpoint_paths: ["a", \'b\' "c"] model_checkpoint_path: "/d"': True,
    "all_model_checkpoint_paths: []\n": False,
    'model_checkpoint_path: "a"\nall_model_checkpoint_timestamps: [1.5e9, -.5, inf, 3.f]\n'
    "last_preserved_timestamp: 1659450000.25\n": True,
    'model_checkpoint_path: "a"\nlast_preserved_timestamp: [1.5]': False,
    'model_checkpoint_path: "a"\nlast_preserved_timestamp: 12x': False,
    'model_checkpoint_path: ""': False,
    'model_checkpoint_path "a"': False,
    'model_checkpoint_path: "a': False,
    'model_checkpoint_path: "a\nb"': False,
    'model_checkpoint_path: "\\377"': False,
    "model_checkpoint_path: a": False,
    'model_checkpoint_paths: "a"': False,
    'model_checkpoint_path: "a" {}': False,
    'model_checkpoint_path: "a" ,,': False,
    "": False,
    "#": False,
}


def theirs(content):
    """The path that TensorFlow finds; None where it passes over the file."""
    try:
        state = text_format.Merge(content, CheckpointState())
    except (text_format.ParseError, DeprecationWarning):  # the latter of an unknown escape
        return None
    path = state.model_checkpoint_path
    return path if path and "\0" not in path else None  # of which no file exists


def ours(content):
    try:
        return checkpoint_files.latest_path(content)
    except ValueError:
        return None


@pytest.mark.parametrize("content", STATES)
def test_checkpoint_state_file_is_read_as_tensorflow_does(content):
    found = ours(content)
    assert (found is not None) == STATES[content]
    assert found == theirs(content)


@given(st.text(min_size=1).filter(lambda text: "\0" not in text))
def test_checkpoint_state_file_every_saver_path_is_read(path):
    state = CheckpointState(model_checkpoint_path=path, all_model_checkpoint_paths=["x", path])
    for as_utf8 in (False, True):
        assert ours(text_format.MessageToString(state, as_utf8=as_utf8)) == path


PIECES = [*"\"'#[]:,;\n\r\t 01x.-eé{}", "#\n", '"a"', "inf", "1f", "[]", *STATES]


@given(
    st.sampled_from(sorted(STATES, key=len)[-6:]),
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 6), st.sampled_from(PIECES)), max_size=3
    ),
)
def test_checkpoint_state_file_damaged_is_read_as_tensorflow_does(content, damages):
    for at, lost, piece in damages:
        content = content[:at] + piece + content[at + lost :]
    assert ours(content) == theirs(content)


def test_checkpoint_state_file_endless_comments_refused_quickly():
    for content in ("#" * 50_000 + "\n?", "model_checkpoint_path: " + '"a"' * 20_000 + "?"):
        with pytest.raises(ValueError, match="not the state"):
            checkpoint_files.latest_path(content)


def test_checkpoint_state_file_names_another_folder(tmp_path):
    save(tmp_path / "other", 7)
    for path in (tmp_path / "other" / "model.ckpt-7", "other/model.ckpt-7", "absent"):
        (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{path}"')
        assert checkpoint_files.named(str(tmp_path)) == tf.train.latest_checkpoint(tmp_path)
    assert checkpoint_files.global_step(str(tmp_path / "other")) == 7  # a folder, as a prefix


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("damage", ["index cut off", "data cut off", "data lost", "index lost"])
def test_resume_from_latest_checkpoint_skips_incomplete_ones(tmp_path, damage, named):
    for step in (5, 20):
        save(tmp_path, step, weights=EMBEDDING)
    file, what = damage.split(maxsplit=1)
    path = next(tmp_path.glob(f"model.ckpt-20.{file}*"))
    if what == "lost":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    if named and what == "cut off":  # its names are there: that it is damaged, a start says
        assert checkpoint_files.latest(str(tmp_path)) == str(tmp_path / "model.ckpt-20")
        return
    if not named:
        (tmp_path / "checkpoint").unlink()
    assert checkpoint_files.latest(str(tmp_path)) == str(tmp_path / "model.ckpt-5")
    (tmp_path / "model.ckpt-5.index").write_bytes(b"")
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    with pytest.raises(UserError, match=r"has [12] checkpoints, but none is complete: .*: .*"):
        checkpoint_files.latest(str(tmp_path))


def test_checkpoint_global_step_is_read(tmp_path):
    assert checkpoint_files.global_step(save(tmp_path, 1_100_000)) == 1_100_000
    with pytest.raises(UserError, match="none cannot be read .*without its ending"):
        checkpoint_files.global_step(str(tmp_path / "none"))


def test_checkpoint_files_take_few_bucket_requests(bucket, tmp_path):
    for step in (5, 20):
        writer = BundleWriter(tmp_path / f"model.ckpt-{step}")
        writer.add("global_step", np.array(step, np.int64))
        writer.finish()
    for path in tmp_path.iterdir():
        any_path(f"gs://b/model/{path.name}").write_bytes(path.read_bytes())
    any_path("gs://b/model/checkpoint").write_text('model_checkpoint_path: "model.ckpt-20"')
    requests = {
        lambda: checkpoint_files.steps("gs://b/model") == [5, 20]: 2,
        lambda: checkpoint_files.named("gs://b/model") == "gs://b/model/model.ckpt-20": 4,
        lambda: checkpoint_files.global_step("gs://b/model/model.ckpt-20") == 20: 8,
    }
    for call, most in requests.items():
        first = len(bucket.calls())
        assert call()
        assert bucket.counts(first).total() <= most


@pytest.mark.parametrize(
    "name", ["shared__embedding", "encoder__embedding", "decoder__embedding", "embedding"]
)
def test_checkpoint_vocabulary_mismatch_names_both_sizes(tmp_path, name):
    checkpoint = save(tmp_path, 1, **{name: EMBEDDING})
    assert checkpoint_files.vocabulary_size(checkpoint) == 256

    def check(vocabulary, divisor=128):
        checkpoint_files.check_vocabulary(
            checkpoint, vocabulary=vocabulary, divisor=divisor, source="/v/my.model"
        )

    for fits in (129, 200, 256):
        check(fits)
    for other in (128, 257):
        with pytest.raises(UserError, match=f"/v/my.model has {other} ids .*trained with 256"):
            check(other)
    with pytest.raises(UserError, match="200 padded to a multiple of 1"):
        check(200, divisor=1)


def test_checkpoint_vocabulary_check_skipped_without_embedding(tmp_path):
    checkpoint_files.check_vocabulary(
        save(tmp_path, 1, other=EMBEDDING), vocabulary=3, divisor=128, source=""
    )


def test_checkpoint_variables_are_compared_with_the_graph(tmp_path):
    checkpoint = save(tmp_path, 1, a=EMBEDDING, b=np.zeros([3], np.float32))

    def check(**shapes):
        with tf.Graph().as_default():
            variables = [
                tf.get_variable(name, shape, dtype, use_resource=resource)
                for resource, (name, (shape, dtype)) in enumerate(shapes.items())
            ]
            checkpoint_files.check_variables(checkpoint, checkpoint_files.read_graph(variables))

    check(a=([256, 4], tf.float32), b=([3], tf.float32))
    with pytest.raises(UserError, match="1 of the model's 2 variables are missing, such as c"):
        check(a=([256, 4], tf.float32), c=([3], tf.float32))
    with pytest.raises(
        UserError,
        match=r"(?s)does not match.*b: \[3\], the configured model \[4\].*another --model_dir",
    ):
        check(b=([4], tf.float32))
    with pytest.raises(UserError, match="has b as float32.*as bfloat16.*= 'float32'"):
        check(b=([3], tf.bfloat16))


def test_checkpoint_unreadable_path_error_message(tmp_path):
    (tmp_path / "model.ckpt-3.index").write_text("this is no index")
    for name, words in {
        "model.ckpt-3": "model.ckpt-3.index is not a complete index",
        "none": "none cannot be read .*without its ending",
        "": "has 1 checkpoints, but none is complete",
    }.items():
        with pytest.raises(UserError, match=words):
            checkpoint_files.read(str(tmp_path / name))

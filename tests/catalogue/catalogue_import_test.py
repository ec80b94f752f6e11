"""`import t0.seqio_tasks` in a fresh process: what it opens, writes and connects to."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a process that imports TensorFlow
ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = """
dataset: moods
templates:
  a: !Template
    name: which
    jinja: '{{text}} ||| {{answer_choices[label]}}'
    answer_choices: sad ||| glad
    metadata: !TemplateMetadata
      metrics: [Accuracy]
"""
# An audit hook sees every file that Python opens, every socket and every child process.
PROGRAM = """
import json, os, sys
seen = {"written": [], "opened": [], "reached": []}
def hook(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        wanted = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        writes = any(c in mode for c in "wax+") if mode else bool((flags or 0) & wanted)
        seen["written" if writes else "opened"].append(str(path))
    elif event in ("socket.connect", "socket.getaddrinfo", "urllib.Request"):
        seen["reached"].append(str(arguments[1:]))
sys.addaudithook(hook)
import t0.sources
def refuse(*args, **kwargs):
    raise AssertionError("a dataset was opened")
import t0.sources.splits
t0.sources.open_split = t0.sources.splits.open_split = refuse
import t0.seqio_tasks
seen = json.loads(json.dumps(seen))
import seqio
from tensorflow.python.eager import context
from t0.prompts import CompiledTemplate
seen["tasks"] = len(t0.seqio_tasks.catalogue_entries())
seen["own"] = sorted(name for name in seqio.TaskRegistry.names() if name.startswith("moods"))
seen["devices"] = context.context()._context_handle is not None
seen["heavy"] = [name for name in ("datasets", "mesh_tensorflow", "torch") if name in sys.modules]
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("import")
    (folder / "moods").mkdir()
    (folder / "moods" / "templates.yaml").write_text(TEMPLATES)
    (folder / "moods" / "train.jsonl").write_text('{"text": "rain", "label": 0}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T0_DATA_DIR", str(folder))
        patch.setenv("T0_VOCAB", str(folder / "no such vocabulary"))
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"folder": str(folder)}


def test_catalogue_import_uses_no_network(seen):
    assert seen["reached"] == []


def test_catalogue_import_writes_nothing_and_opens_no_device(seen):
    # Python's tempfile tries a folder by a file that it removes at once, for TensorFlow. If no
    # earlier test has imported Keras, TensorFlow's import writes its settings.
    written = [path for path in seen["written"] if Path(path).name != "keras.json"]
    assert [path for path in written if Path(path).is_file()] == []
    assert not seen["devices"]


def test_catalogue_import_opens_templates_but_no_rows(seen):
    ours = [path for path in seen["opened"] if path.startswith(seen["folder"])]
    assert set(ours) == {f"{seen['folder']}/moods/templates.yaml"}
    assert seen["own"] == ["moods_which", "moods_which_score_eval"]
    assert seen["tasks"] == 592


def test_catalogue_import_does_not_import_heavy_packages(seen):
    assert seen["heavy"] == []

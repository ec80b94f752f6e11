"""A tiny vocabulary, and the made-up dataset `moods` with one template for each rule of T0."""

import json
import shutil

import pytest

from t0.testing import with_sentinels
from tests.tasks.moods import MOODS, ROWS
from tests.tasks.task_vocabularies import train_model


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Paths of tiny models: `plain`, `sentinels` (of the same pieces) and `other`."""
    folder = tmp_path_factory.mktemp("models")
    plain = train_model(folder / "plain.model", 0)
    return {
        "plain": plain,
        "other": train_model(folder / "other.model", 3),
        "sentinels": with_sentinels(plain, folder / "sentinels.model"),
    }


@pytest.fixture
def vocabulary(models, monkeypatch):
    """Makes the tiny model the vocabulary in force; returns its path."""
    monkeypatch.setenv("T0_VOCAB", str(models["plain"]))
    return models["plain"]


@pytest.fixture
def moods(tmp_path, monkeypatch):
    """Puts `moods` into the data folder; returns its templates by name."""
    from t0.prompts import read_template_file
    from t0.sources import schema

    folder = tmp_path / "data" / "moods"
    folder.mkdir(parents=True)
    shutil.copy(MOODS, folder)
    # As in T0's datasets, the -1 of a single row hides its label.
    known = {"label": {"dtype": "int64", "_type": "Value"}}
    features = schema.features
    monkeypatch.setattr(schema, "features", lambda *of: known if "moods" in of else features(*of))
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path / "data"))
    templates = read_template_file(MOODS, published=True).templates
    return {template.name: template for template in templates}


@pytest.fixture
def mood_tasks(moods):
    """Builds a template's tasks: `mood_tasks("closed")` gives the plain and the scored one."""
    import seqio

    from t0.tasks import PromptedTask, task_definitions

    def build(name):
        task = PromptedTask("moods", None, moods[name], {"train": "train"}, {"train": len(ROWS)})
        made = [seqio.Task(name, **parts) for name, parts in task_definitions(task).items()]
        return made if len(made) == 2 else (*made, None)

    return build

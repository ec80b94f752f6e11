import importlib.metadata
import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from t0.errors import UserError
from t0.prompts import read_template_file, templates

ROOT = Path(__file__).parents[2]
COMMAND = "pip install --no-deps --ignore-requires-python promptsource==0.1.0"


@pytest.fixture(autouse=True)
def fresh_cache():
    templates.templates_root.cache_clear()
    yield
    templates.templates_root.cache_clear()


def version_is(monkeypatch, version):
    def installed(name):
        assert name == "promptsource"
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)


def test_promptsource_template_paths():
    rte = templates.template_file_path("super_glue", "rte")
    assert rte == templates.templates_root() / "super_glue" / "rte" / "templates.yaml"
    assert rte.is_file()
    for none in (None, ""):
        path = templates.template_file_path("trec", none)
        assert path == templates.templates_root() / "trec" / "templates.yaml"
        assert path.is_file()


def test_promptsource_path_of_dataset_without_templates():
    assert not templates.template_file_path("jigsaw_toxicity_pred", None).exists()


def test_promptsource_missing_names_the_install_command(monkeypatch):
    version_is(monkeypatch, None)
    with pytest.raises(UserError, match="no promptsource is installed") as caught:
        templates.template_file_path("trec", None)
    assert COMMAND in str(caught.value)


def test_promptsource_of_another_version_is_refused(monkeypatch):
    version_is(monkeypatch, "0.2.3")
    with pytest.raises(UserError, match=r"promptsource 0\.2\.3 is installed.*0\.1\.0") as caught:
        templates.templates_root()
    assert COMMAND in str(caught.value)


def test_promptsource_without_templates_folder_is_refused(monkeypatch):
    version_is(monkeypatch, "0.1.0")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="without its templates folder"):
        templates.templates_root()


def test_template_file_is_read_without_tensorflow():
    program = (
        "import sys; from t0.prompts import *;"
        "file = read_template_file(template_file_path('super_glue', 'rte'));"
        "CompiledTemplate(file.templates[0]).example({'premise': 'a', 'hypothesis': 'b',"
        " 'label': 0});"
        "heavy = {'promptsource', 'tensorflow', 'seqio', 't5', 'pandas', 'numpy', 'datasets'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


WEATHER = Path(__file__).parent / "fixtures" / "weather" / "templates.yaml"

ENTRY = """\
dataset: d
templates:
  one: !Template
    name: first
    jinja: '{{a}} ||| {{b}}'
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "templates.yaml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def test_template_file_fields_are_read():
    file = read_template_file(WEATHER)
    assert (file.path, file.dataset, file.subset) == (WEATHER, "weather", "daily")
    template = {t.name: t for t in file.templates}["dry or wet"]
    assert template.jinja == "{{report}} Dry or wet? ||| {{ answer_choices[label] }}"
    assert template.answer_choices == "dry ||| wet"
    assert template.reference == "made up"
    assert template.original_task is True
    assert template.choices_in_prompt is True
    assert template.metrics == ("Accuracy", "Other")
    assert template.id == "00000000-0000-4000-8000-000000000001"
    assert template.where == f"{WEATHER}:4"


def test_template_file_null_metadata_is_false_and_empty():
    template = {t.name: t for t in read_template_file(WEATHER).templates}["choices of the row"]
    assert template.original_task is False
    assert template.choices_in_prompt is False
    assert template.metrics == ()


def test_template_file_is_sorted_by_name():
    names = [template.name for template in read_template_file(WEATHER).templates]
    assert names == sorted(names)
    assert len(names) == 10


def test_template_file_is_read_as_by_promptsource():
    stock = pytest.importorskip("promptsource.templates")
    for dataset, subset in [("super_glue", "rte"), ("trec", None), ("cos_e", "v1.11")]:
        file = read_template_file(templates.template_file_path(dataset, subset))
        wanted = stock.DatasetTemplates(dataset, subset)
        assert (file.dataset, file.subset) == (dataset, subset)
        assert [t.name for t in file.templates] == wanted.all_template_names
        for ours in file.templates:
            theirs = wanted[ours.name]
            assert (ours.id, ours.jinja) == (theirs.id, theirs.jinja)
            assert (ours.answer_choices, ours.reference) == (
                theirs.answer_choices,
                theirs.reference,
            )
            assert ours.original_task == bool(theirs.metadata.original_task)
            assert ours.choices_in_prompt == bool(theirs.metadata.choices_in_prompt)
            assert ours.metrics == tuple(theirs.metadata.metrics or ())


def test_template_file_short_entry_has_defaults(tmp_path):
    (template,) = read_template_file(write(tmp_path, ENTRY)).templates
    assert (template.answer_choices, template.reference, template.id) == (None, "", "one")
    assert (template.original_task, template.choices_in_prompt) == (False, False)
    assert template.metrics == ()
    assert template.truncate
    (template,) = read_template_file(write(tmp_path, ENTRY + "    truncate: false\n")).templates
    assert not template.truncate


def test_template_file_without_templates_is_empty(tmp_path):
    assert read_template_file(write(tmp_path, "templates: {}\n")).templates == ()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("templates: [\n", 2, ["not a template file"]),
        ("a: b: c\n", 1, ["not a template file"]),
        ("- 1\n", None, ["mapping with the keys", "got list"]),
        ("", None, ["got NoneType"]),
        ("dataset: d\n", None, ["'templates' is missing"]),
        ("templates:\n", None, ["templates must be a mapping", "NoneType"]),
        ("template: {}\n", None, ["unknown key 'template'", "Did you mean 'templates'"]),
        ("subset: 2016\ntemplates: {}\n", None, ["subset must be text", "int 2016", "quotes"]),
        ("templates:\n  x: !Templat {}\n", 2, ["!Templat", "only !Template and"]),
        ("templates:\n  x: !!python/name:os.system\n", 2, ["python/name:os.system"]),
        ("templates:\n  x: !!python/object/apply:os.getcwd []\n", 2, ["os.getcwd"]),
        ("templates:\n  x: {name: n, jinja: j}\n", None, ["'x'", "`x: !Template`"]),
        ("templates:\n  x: !Template [1]\n", 2, ["expected a mapping"]),
        ("templates:\n  x: !Template\n    name: n\n", 2, ["'n'", "'jinja' is missing"]),
        ("templates:\n  x: !Template\n    jinja: j\n", 2, ["'x'", "'name' is missing"]),
        (ENTRY + "    answer_choice: a\n", 3, ["'first'", "Did you mean 'answer_choices'"]),
        (ENTRY + "    answer_choices: yes\n", 3, ["answer_choices must be text or null", "True"]),
        (ENTRY + "    answer_choices: [a, b]\n", 3, ["answer_choices must be text", "list"]),
        (ENTRY + "    metadata: !TemplateMetadata {metric: []}\n", 3, ["mean 'metrics'"]),
        (ENTRY + "    metadata: !TemplateMetadata {metrics: Accuracy}\n", 3, ["list of names"]),
        (ENTRY + "    metadata: !TemplateMetadata {metrics: [1]}\n", 3, ["list of names", "1"]),
        (ENTRY + "    truncate: 4096\n", 3, ["truncate must be true or false", "int 4096"]),
        (ENTRY + "    name: again\n", 6, ["'name' occurs twice"]),
        (ENTRY + "  one: !Template {name: second, jinja: j}\n", 6, ["'one' occurs twice"]),
        (ENTRY + "  two: !Template {name: first, jinja: j}\n", 6, ["'first'", ":3)"]),
        (ENTRY + "  two: !Template {name: 7, jinja: j}\n", 6, ["name must be text", "int 7"]),
    ],
)
def test_template_file_error_names_file_and_line(tmp_path, text, line, words):
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_template_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}:" if line else f"{path}:")
    for word in words:
        assert word in message


def test_template_file_that_is_missing_or_unreadable(tmp_path):
    with pytest.raises(UserError, match="none.yaml: cannot be read: .*No such file"):
        read_template_file(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        read_template_file(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfea: \x80\x81\x82")
    with pytest.raises(UserError, match="bytes.yaml"):
        read_template_file(tmp_path / "bytes.yaml")

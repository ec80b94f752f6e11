"""Finds and reads promptsource's template files (YAML with !Template and !TemplateMetadata tags).

    path = template_file_path("super_glue", "rte")   # .../super_glue/rte/templates.yaml
    read_template_file(path, published=True).templates[0].name    # 'GPT-3 style'

A file looks like this:

    dataset: weather
    subset: daily
    templates:
      7a1c: !Template
        answer_choices: dry ||| wet
        id: 7a1c
        jinja: '{{report}} Dry or wet? ||| {{answer_choices[label]}}'
        metadata: !TemplateMetadata
          choices_in_prompt: true
          metrics: [Accuracy]
          original_task: true
        name: dry or wet
        reference: ''

Every deviation from the format raises a UserError with the file, the line and the template's name.
The keys `name` and `jinja` are required. The other keys have promptsource's defaults. This project
adds two keys. If a template has `truncate: false`, texts of more than 2,048 characters are printed
in full. At the top level of the file, `columns: {review_text: review text}` says that `review_text`
in the templates means the column `review text` of the user's own file. Jinja syntax errors are
found only when a template is compiled (`t0.prompts.render`), so that T0's 65 files are read
quickly.

Promptsource must be installed as a distribution (`bin/setup` installs it). This module reads
promptsource's template files but never imports promptsource, because promptsource's modules need
pandas and pkg_resources and take a second to load.
"""

import dataclasses
import functools
import importlib.metadata
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from t0.errors import UserError, nearest
from t0.files.any_path import any_path
from t0.files.untrusted import SAFE_LOADER, read_yaml

PROMPTSOURCE_VERSION = "0.1.0"
"""The version of promptsource whose templates were used to train and evaluate T0."""

_INSTALL = f"pip install --no-deps --ignore-requires-python promptsource=={PROMPTSOURCE_VERSION}"


@functools.cache
def templates_root() -> Path:
    """Returns the folder of promptsource's templates, without importing promptsource.

    Raises:
      UserError: promptsource is missing, has a different version, or has no templates.
    """
    try:
        version = importlib.metadata.version("promptsource")
    except importlib.metadata.PackageNotFoundError:
        version = None
    if version != PROMPTSOURCE_VERSION:
        installed = f"promptsource {version}" if version else "no promptsource"
        raise UserError(
            f"{installed} is installed, but T0's prompts and tasks are those of promptsource "
            f"{PROMPTSOURCE_VERSION}. Run: {_INSTALL}"
        )
    spec = importlib.util.find_spec("promptsource")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / "templates").is_dir():
            return Path(folder) / "templates"
    raise UserError(
        f"promptsource {version} is installed without its templates folder. "
        f"Run: {_INSTALL} --force-reinstall"
    )


def template_file_path(dataset: str, subset: str | None) -> Path:
    """Returns the path of a dataset's template file, whether or not the file exists.

    For some datasets of T0's table, such as jigsaw_toxicity_pred, promptsource has no templates.
    Like promptsource's reader, callers should treat a missing file as "no templates".

    Args:
      dataset: the name that the dataset had on the Hugging Face hub when promptsource was released,
        such as `super_glue`.
      subset: the name of the configuration; None (or "") for a dataset without configurations.

    Raises:
      UserError: promptsource's templates cannot be found; see `templates_root`.
    """
    folder = templates_root() / dataset
    return (folder / subset if subset else folder) / "templates.yaml"


# The metrics that a template may name, in promptsource's spelling. `t0.tasks.metrics.METRICS` has
# their functions.
METRIC_NAMES = (
    *("BLEU", "ROUGE", "Squad", "Trivia QA", "COQA F1", "Edit Distance"),
    *("Accuracy", "Sequence Accuracy", "Pearson Correlation", "Spearman Correlation", "Other"),
)

# Marks a field of `Template` that changes no text, so that caches do not depend on it.
_NO_TEXT = {"changes_texts": False}


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt, which says how to write a row as text.

    A cache is only valid for the fields that are not marked with `_NO_TEXT`; see `text_fields`.

    Attributes:
      name: the name, which is unique among the dataset's templates.
      jinja: the Jinja source of the prompt, `inputs ||| targets`.
      answer_choices: the Jinja source of the choices, separated by ` ||| `; None for an open-ended
        template.
      reference: the author or source.
      original_task: whether the prompt is for the task that the dataset was made for. If the value
        in a file is null, this is False.
      choices_in_prompt: whether the inputs show the choices.
      metrics: names of metrics in promptsource's spelling, such as `Accuracy`.
      id: promptsource's identifier, a UUID.
      where: the `file:line` from which the template was read, for messages. This attribute is
        ignored when templates are compared.
      published: whether promptsource published the template. A published template prints the same
        text as in promptsource, even if a label selects no choice. This attribute is ignored when
        templates are compared.
      truncate: whether texts of more than 2,048 characters are truncated when they are printed.
      columns: for each column that `t0 init` has renamed: (name in the template, name in the user's
        own file). Predictions read these columns. This attribute is ignored when templates are
        compared.
    """

    name: str = field(metadata=_NO_TEXT)
    jinja: str
    answer_choices: str | None
    reference: str = field(metadata=_NO_TEXT)
    original_task: bool = field(metadata=_NO_TEXT)
    choices_in_prompt: bool = field(metadata=_NO_TEXT)
    metrics: tuple[str, ...] = field(metadata=_NO_TEXT)
    id: str = field(metadata=_NO_TEXT)
    where: str = field(default="", compare=False, metadata=_NO_TEXT)
    # It changes texts, but caches record it on their own: see `missing_values` in `t0.caching`.
    published: bool = field(default=False, compare=False, metadata=_NO_TEXT)
    truncate: bool = True
    columns: tuple[tuple[str, str], ...] = field(default=(), compare=False, metadata=_NO_TEXT)


def text_fields(template: Template) -> dict[str, Any]:
    """Returns the fields of a template that change its texts, in the order of the class.

    A cache and the parts of an unfinished cache are valid for one set of values. Every new field
    counts, also that of a subclass, unless it is marked with `_NO_TEXT`.
    """
    fields = dataclasses.fields(template)
    return {each.name: getattr(template, each.name) for each in fields if each.metadata != _NO_TEXT}


@dataclass(frozen=True)
class TemplateFile:
    """The templates of one dataset and subset, sorted by name as in promptsource."""

    path: Path
    dataset: str | None
    subset: str | None
    templates: tuple[Template, ...]


class _Key(NamedTuple):
    """A key of a template file: its types, a description of them, and whether it is required."""

    types: tuple[type, ...]
    description: str
    required: bool = False


_NONE = type(None)
_FILE_KEYS = {
    "templates": _Key((dict,), "a mapping from ids to !Template entries", required=True),
    "dataset": _Key((str, _NONE), "text"),
    "subset": _Key((str, _NONE), "text"),
    "columns": _Key((dict,), "a mapping from names in templates to columns of your file"),
}
_TEMPLATE_KEYS = {
    "name": _Key((str,), "text", required=True),
    "jinja": _Key((str,), "text", required=True),
    "answer_choices": _Key((str, _NONE), "text or null"),
    "reference": _Key((str, _NONE), "text"),
    "id": _Key((str,), "text"),
    "metadata": _Key((dict,), "a !TemplateMetadata entry"),
    "truncate": _Key((bool,), "true or false"),
}
_METADATA_KEYS = {
    "original_task": _Key((bool, _NONE), "true, false or null"),
    "choices_in_prompt": _Key((bool, _NONE), "true, false or null"),
    "metrics": _Key((list, _NONE), "a list of names or null"),
    # Later versions of promptsource write this key; it is not used here.
    "languages": _Key((list, _NONE), "a list of codes or null"),
}


class _Tagged(NamedTuple):
    """A `!Template` node: its fields and its first line (the file's first line is 1)."""

    line: int
    fields: dict[str, Any]


class _Loader(SAFE_LOADER):
    """A safe loader that accepts promptsource's two tags and rejects repeated keys."""

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, _ in node.value:
                # If two keys are equal, YAML uses the last one. So if a template was copied
                # together with its id, the original or the copy would be lost without a message.
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key '{key.value}' occurs twice", key.start_mark
                    )
                seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep=deep)


_Loader.add_constructor(
    "!Template",
    lambda loader, node: _Tagged(
        node.start_mark.line + 1, loader.construct_mapping(node, deep=True)
    ),
)
_Loader.add_constructor(
    "!TemplateMetadata", lambda loader, node: loader.construct_mapping(node, deep=True)
)


def read_template_file(path: str | Path, *, published: bool = False) -> TemplateFile:
    """Reads a file of templates in promptsource's format.

    Args:
      path: the file.
      published: whether the file is from promptsource; see `Template`.

    Raises:
      UserError: the file is missing, unreadable or not YAML; a tag or key is unknown; a required
        key is missing; a value has the wrong type; or two templates have the same name.
    """
    path = any_path(path)
    content = read_yaml(
        path,
        _Loader,
        kind="template file",
        tags="!Template and !TemplateMetadata",
        count_values=not published,
    )
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: a template file is a mapping with the keys dataset, subset and templates; "
            f"got {_describe(content)}."
        )
    _check(content, _FILE_KEYS, str(path))
    columns = tuple(content.get("columns", {}).items())
    if not all(isinstance(name, str) for pair in columns for name in pair):
        raise UserError(f"{path}: columns must map texts to texts; put quotes around numbers.")
    entries = content["templates"].items()
    templates = [_template(path, key, entry, published, columns) for key, entry in entries]
    by_name: dict[str, Template] = {}
    for template in templates:
        first = by_name.setdefault(template.name, template)
        if first is not template:
            raise UserError(
                f"{template.where}: a second template is named '{template.name}' (the first: "
                f"{first.where}). Names make task names: give each template its own."
            )
    return TemplateFile(
        path=path,
        dataset=content.get("dataset"),
        subset=content.get("subset"),
        templates=tuple(by_name[name] for name in sorted(by_name)),
    )


def _template(
    path: Path, key: object, entry: object, published: bool, columns: tuple[tuple[str, str], ...]
) -> Template:
    if not isinstance(entry, _Tagged):
        raise UserError(
            f"{path}: the entry '{key}' is {_describe(entry)}, not a template: write "
            f"`{key}: !Template` before its fields."
        )
    where = f"{path}:{entry.line}"
    fields = entry.fields
    label = f"{where}: template '{fields.get('name', key)}'"
    _check(fields, _TEMPLATE_KEYS, label)
    metadata = fields.get("metadata", {})
    _check(metadata, _METADATA_KEYS, f"{label}, metadata")
    metrics = tuple(metadata.get("metrics") or ())
    if not all(isinstance(metric, str) for metric in metrics):
        raise UserError(f"{label}, metadata: metrics must be a list of names; got {metrics}.")
    return Template(
        name=fields["name"],
        jinja=fields["jinja"],
        answer_choices=fields.get("answer_choices"),
        reference=fields.get("reference") or "",
        original_task=bool(metadata.get("original_task")),
        choices_in_prompt=bool(metadata.get("choices_in_prompt")),
        metrics=metrics,
        id=fields.get("id", str(key)),
        where=where,
        published=published,
        truncate=fields.get("truncate", True),
        columns=columns,
    )


def _check(fields: dict[Any, Any], keys: dict[str, _Key], label: str) -> None:
    """Raises a UserError if the fields do not have the keys and types of the table `keys`."""
    for name in fields:
        if name not in keys:
            close = nearest(str(name), keys, count=1)
            guess = f" Did you mean '{close[0]}'?" if close else ""
            raise UserError(f"{label}: unknown key '{name}' (known: {', '.join(keys)}).{guess}")
    for name, key in keys.items():
        if name not in fields:
            if key.required:
                raise UserError(f"{label}: the key '{name}' is missing.")
        elif not isinstance(fields[name], key.types):
            raise UserError(
                f"{label}: {name} must be {key.description}; got {_describe(fields[name])}. "
                "If it is text, put quotes around it."
            )


def _describe(value: object) -> str:
    """Returns the name of a value's type and, if it is short, the value."""
    shown = repr(value)
    kind = type(value).__name__
    return kind if len(shown) > 40 else f"{kind} {shown}"

"""Small prompted tasks, as the catalogue builds them, over data in the folder TOY_CACHING/data.

`lay_out` writes the data; the data folder must be named by T0_DATA_DIR. Imported by the tests, and
by the commands they start, as --module_import=tests.caching.toy_prompted_tasks.
"""

import json

import seqio

from t0.prompts import Template
from t0.tasks import PromptedTask, task_definitions

ROWS = {"train": 1203, "validation": 40, "hidden": 12, "late": 1203}
WORDS = [
    "rain",
    "snow  and",
    "\tsun",
    "wind\n\nover",
    "clöud",
    "<extra_id_3>",
    "日本",
    "a|||b",
    "𝄞",
]


def lay_out(folder):
    data = folder / "data" / "weather" / "default"
    data.mkdir(parents=True)
    for split, count in ROWS.items():
        with (data / f"{split}.jsonl").open("w") as file:
            for i in range(count):
                words = [WORDS[(i * k) % len(WORDS)] for k in range(1, 2 + i % 5)]
                label = i % 2
                if split == "hidden":
                    label = -1
                elif split == "late" and i > 700:
                    label = None
                row = {"text": f" {i} {' '.join(words)}", "words": words, "label": label}
                file.write(json.dumps(row) + "\n")


def template(name, jinja, answer_choices="No ||| Yes"):
    return Template(
        name=name,
        jinja=jinja,
        answer_choices=answer_choices,
        reference="",
        original_task=True,
        choices_in_prompt=False,
        metrics=("Accuracy",),
        id=name,
        where="templates.yaml:1",
    )


TEMPLATES = [
    template("plain", "Is it wet? {{text}} ||| {{answer_choices[label]}}"),
    template("open", "Say it again: {{text}} ||| {{text}}", None),
    # Takes rows of label 1 of some only, so that many ranges lose some of theirs.
    template(
        "drops", "{% if words|length > 1 %}{{text}}? ||| {{answer_choices[label]}}{% endif %}"
    ),
    template(
        "changes",
        "{{words['app' + 'end']('hail') or ''}}{{words|join('; ')}} ||| {{words|length}}",
        "2 ||| 3 ||| 4 ||| 5 ||| 6",
    ),
    template("chance", "{{['A', 'B', 'C']|choice}}: {{text}} ||| {{answer_choices|choice}}"),
    template("own_choices", "{{text}} ||| {{words[0]}}", "{{words|join(' ||| ')}}"),
    template("nothing", "{% if label > 5 %}{{text}} ||| x{% endif %}"),
    template("fails", "{% set x = 1 // (1 if words|length < 5 else 0) %}{{text}} ||| x"),
    template("no_column", "{{wrods}} ||| x"),
]

TASKS = {}
for _template in TEMPLATES:
    _task = PromptedTask(
        "weather",
        None,
        _template,
        split_mapping={split: split for split in ("train", "validation")},
        num_rows=ROWS,
    )
    TASKS.update(task_definitions(_task))
for _split in ("hidden", "late"):
    _task = PromptedTask(
        "weather", None, TEMPLATES[0], {"test": _split}, {"test": ROWS[_split]}, f"_{_split}"
    )
    TASKS.update(task_definitions(_task))

for _name, _arguments in TASKS.items():
    seqio.TaskRegistry.add(_name, **_arguments)

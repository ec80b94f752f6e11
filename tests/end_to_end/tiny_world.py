"""A small world for whole runs: a dataset about weather with its prompts, mixtures and vocabulary.

The label of a row is the word that its report holds, so a tiny model can learn the task. Beside
the good dataset stand faulty ones, for the tests of what users get wrong.
"""

import json
import random
from pathlib import Path

import t5_pieces
import yaml

WORDS = ("rain", "snow", "wind", "heat")
PLACES = ("Oslo", "Lima", "Cairo", "Perth", "Quito", "Kyoto", "Turin", "Accra")

# name -> (jinja, answer_choices)
PROMPTS = {
    "which word": (
        "Report from {{place}}: {{report}}. Which weather? ||| {{ answer_choices[label] }}",
        "rain ||| snow ||| wind ||| heat",
    ),
    "own choices": (
        "{{report}} in {{place}}. Choose: {{ options | join(', ') }} ||| {{ options[right] }}",
        "{{ options | join('|||') }}",
    ),
    "retell": ("Where? {{report}} ||| {{place}}", None),
}


class _Template(yaml.YAMLObject):
    yaml_tag = "!Template"

    def __init__(self, **fields):
        self.__dict__.update(fields)


class _Metadata(yaml.YAMLObject):
    yaml_tag = "!TemplateMetadata"

    def __init__(self, **fields):
        self.__dict__.update(fields)


def write_templates(folder, prompts):
    templates = {}
    for name, (jinja, choices) in prompts.items():
        metadata = _Metadata(choices_in_prompt=False, metrics=["Accuracy"], original_task=True)
        templates[name] = _Template(
            id=name, name=name, jinja=jinja, answer_choices=choices, reference="", metadata=metadata
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "templates.yaml").write_text(yaml.dump({"templates": templates}))


def weather_row(rng, label):
    options = [WORDS[label], *rng.sample([w for w in WORDS if w != WORDS[label]], rng.randrange(3))]
    if len(options) == 1:
        options.append("a very long and winding spell of fog")
    rng.shuffle(options)
    hours = " ".join(rng.choice(("early", "late", "then", "soon")) for _ in range(rng.randrange(9)))
    return {
        "place": rng.choice(PLACES),
        "report": f"{hours} much {WORDS[label]} today".strip(),
        "label": label,
        "options": options,
        "right": options.index(WORDS[label]),
    }


def _write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def lay_out(folder: Path) -> None:
    """Writes data/, vocab.model and mixtures into `folder`."""
    rng = random.Random(3)
    weather = folder / "data" / "weather"
    write_templates(weather, PROMPTS)
    for split, count in (("train", 240), ("validation", 30), ("test", 8)):
        _write_rows(weather / f"{split}.jsonl", [weather_row(rng, i % 4) for i in range(count)])
    _lay_out_faulty(folder / "data", rng)
    mixtures = {
        "weather_train": {"tasks": ["weather_which_word", "weather_own_choices"]},
        "weather_eval": {"tasks": ["weather_.*_score_eval"]},
        "broken_train": {"tasks": ["broken_which_word"], "rate": 1},
    }
    (folder / "data" / "mixtures.yaml").write_text(yaml.dump(mixtures))
    _train_vocabulary(folder, rng)


def _lay_out_faulty(data, rng):
    which_word = {"which word": PROMPTS["which word"]}
    rows = [json.dumps(weather_row(rng, i % 4)) for i in range(20)]
    write_templates(data / "broken", which_word)
    (data / "broken" / "train.jsonl").write_text("\n".join([*rows[:7], '{"place": "Os', *rows[7:]]))
    # Half of the labels hidden; all of them.
    for name, hidden in (("halfhidden", 2), ("hidden", 1)):
        write_templates(data / name, which_word)
        mixed = [weather_row(rng, i % 4) for i in range(12)]
        for index, row in enumerate(mixed):
            row["label"] = -1 if index % hidden == 0 else row["label"]
        _write_rows(data / name / "validation.jsonl", mixed)


def _train_vocabulary(folder, rng):
    """Writes vocab.model, and other.model with too many pieces for vocab.model's models."""
    rows = [json.loads(line) for line in (folder / "data/weather/train.jsonl").open()]
    lines = [
        f"Report from {r['place']}: {r['report']}. Which weather? {r['options']}" for r in rows
    ]
    words = ("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(900))
    for name, text in (("vocab", lines), ("other", [*lines, *words])):
        (folder / f"{name}.txt").write_text("\n".join(text))
        _train(folder / f"{name}.txt", folder / name)


def _train(corpus, model):
    t5_pieces.train(
        input=str(corpus),
        model_prefix=str(model),
        vocab_size=400,
        hard_vocab_limit=False,
    )

"""A small world for whole runs: a dataset about weather with its prompts, mixtures and vocabulary.

The label of a row is the word that its report holds, so a tiny model can learn the task. Beside
the good dataset stand faulty ones, for the tests of what users get wrong.
"""

import json
import random
from pathlib import Path

import yaml

from t0.testing import train_vocabulary, write_rows, write_templates

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


def lay_out(folder: Path) -> None:
    """Writes data/, vocab.model and mixtures into `folder`."""
    rng = random.Random(3)
    weather = folder / "data" / "weather"
    write_templates(weather, PROMPTS)
    for split, count in (("train", 240), ("validation", 30), ("test", 8)):
        write_rows(weather / f"{split}.jsonl", [weather_row(rng, i % 4) for i in range(count)])
    _lay_out_faulty(folder / "data", rng)
    mixtures = {
        "weather_train": {"tasks": ["weather_which_word", "weather_own_choices"]},
        "weather_eval": {"tasks": ["weather_.*_score_eval"]},
        "weather_both": {"tasks": ["weather_which_word", "weather_which_word_score_eval"]},
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
            # -1 hides labels only if the split has no other.
            withheld = -1 if hidden == 1 else None
            row["label"] = withheld if index % hidden == 0 else row["label"]
        write_rows(data / name / "validation.jsonl", mixed)
    _lay_out_halves(data / "moods")


# Half of a surrogate pair in two rows. A window of packed rows reads the training data once.
HALVES_ROWS, HALVES = 280, (3, 11)


def halves_texts():
    """The texts of a dataset with half characters."""
    words = ("cut \ud83d" if number in HALVES else "sun" for number in range(HALVES_ROWS))
    return [f"wet {word} {number}" for number, word in enumerate(words)]


def _lay_out_halves(folder):
    write_templates(folder, {"ask": ("{{text}} Good? ||| {{answer_choices[label]}}", "no ||| yes")})
    for split in ("train", "validation"):
        rows = [{"text": text, "label": i % 2} for i, text in enumerate(halves_texts())]
        write_rows(folder / f"{split}.jsonl", rows)


def _train_vocabulary(folder, rng):
    """Writes vocab.model, and other.model with too many pieces for vocab.model's models."""
    rows = [json.loads(line) for line in (folder / "data/weather/train.jsonl").open()]
    lines = [
        f"Report from {r['place']}: {r['report']}. Which weather? {r['options']}" for r in rows
    ]
    words = ("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(900))
    for name, text in (("vocab", lines), ("other", [*lines, *words])):
        train_vocabulary(folder / f"{name}.model", text, size=400)

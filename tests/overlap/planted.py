"""A small world for overlaps: training rows, evaluation rows, and what was planted in them."""

import json

from t0.files import tf_examples, tfrecord
from t0.testing import write_dataset

# Evaluation fields by what becomes of them in the training data. All are found.
PLANTED = {
    "verbatim": "The heron stood in the shallow water of the estuary, and the tide came slowly in.",
    "case": "A lorry full of oranges overturned on the bridge near the northern harbour at dawn.",
    "punctuation": "Nobody's dog, so to speak, had ever crossed the frozen river: not before May!",
    "prompt": "Seven carpenters built the wooden theatre within a month for the summer festival.",
    "short": "Whales sing in winter.",
    "exact": "Thirteen words exactly make this sentence long enough to be one whole run.",
}
CLEAN = [
    "The committee never found out who had painted the railings green that morning.",
    "Rye bread keeps for a week if the cellar is cool and dry enough for it.",
]
MINIMUM = 4  # words of the shortest planted field


def training_texts():
    """The rows' texts of the training data, with the planted ones changed."""
    first, second = PLANTED["prompt"].split(" within ")
    return [
        f"He wrote: {PLANTED['verbatim']} Then he slept.",
        PLANTED["case"].upper(),
        PLANTED["punctuation"].replace(",", " -").replace("'", "\u2019").replace(":", "\u2026"),
        f"{first} within",  # what follows is in `rest`: the training prompt joins the two
        f"It is said that {PLANTED['short'].lower()}",
        PLANTED["exact"],
        "Something else entirely, about the price of tin in the nineteenth century.",
    ], ["", "", "", second, "", "", ""]


def lay_out(folder):
    """Writes the datasets `books` (training) and `quiz` (evaluation); returns the folder."""
    texts, rests = training_texts()
    rows = [{"text": a, "rest": b, "label": 0} for a, b in zip(texts, rests, strict=True)]
    read = ("{{text}} {{rest}} ||| {{answer_choices[label]}}", "no ||| yes")
    write_dataset(folder / "books", {"read": read}, {"train": rows})
    fields = [*PLANTED.values(), *CLEAN]
    rows = [
        {
            "premise": text,
            "question": f"Is it {n}?",
            "label": 0,
            "url": "books of the world wide web",
        }
        for n, text in enumerate(fields)
    ]
    prompts = {
        "plain": ("{{premise}} {{question}} ||| {{answer_choices[label]}}", "no ||| yes"),
        "odd": (
            "{% if question != 'Is it 1?' %}{{premise}}\nTrue or false, in the opinion of those "
            "who know more about it than all of us do? ||| {{answer_choices[label]}}{% endif %}",
            "no ||| yes",
        ),
        "blind": ("{{question}} ||| {{answer_choices[label]}}", "no ||| yes"),
    }
    write_dataset(folder / "quiz", prompts, {"validation": rows})
    return folder


def write_cache(folder, texts, split="train", *, ids=None):
    """Writes a finished cache of a task, with texts or with token ids."""
    folder.mkdir(parents=True)
    with (folder / f"{split}.tfrecord-00000-of-00001").open("wb") as file:
        for number, (inputs, targets) in enumerate(texts):
            if ids is None:
                pairs = (("inputs", inputs), ("targets", targets))
                entries = [
                    tf_examples.bytes_entry(f"{name}_pretokenized", [text.encode()])
                    for name, text in pairs
                ]
            else:
                entries = [tf_examples.ints_entry("inputs", ids[number])]
            file.write(tfrecord.framed(tf_examples.example(b"".join(entries))))
    (folder / f"info.{split}.json").write_text("{}")
    (folder / f"stats.{split}.json").write_text(json.dumps({"examples": len(texts)}))
    (folder / "COMPLETED").write_text("")
    return folder

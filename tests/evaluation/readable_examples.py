"""A fixture to rank: texts like those of T0's prompts, two to seven choices, some all but equal.

Words become tokens by their hash. `TWINS` are two words that the model of `twin_variables` can
hardly tell apart, so choices that differ in them alone differ by a fraction of a thousandth nat.
"""

import zlib

import numpy as np

from tests.evaluation.tiny_models import VOCABULARY

EOS = 1
TWINS = {"sofa": VOCABULARY - 2, "couch": VOCABULARY - 1}

EXAMPLES = [
    (
        "The harbour at Bergen froze in January and no ferry could leave for six days. Question: "
        "ferries left Bergen every day in January. True or false?",
        ["True", "False"],
    ),
    ("The premise is: the man turned on the tap. What happened as a result?",
     ["The toilet filled with water.", "Water flowed from the spout."]),
    ("Suppose it rains in Oslo. Can we infer that the streets are wet? Yes, no, or maybe?",
     ["Yes", "No", "Maybe"]),
    (
        "A woman sits on a bench in the park and opens her lunch box. A dog runs up to her and "
        "sniffs at the bread. How does this go on?",
        [
            "She laughs, breaks off a piece, and holds it out on her open palm.",
            "The park sits on the bench and the bread opens the dog.",
            "She plays the piano until the audience leaves the hall one by one.",
            "She closes the box.",
        ],
    ),
    ("Where do you sit down to read? The cat sleeps on the", ["sofa", "couch"]),
    ("Where do you sit down to read? They carried away the",
     ["old couch", "old sofa", "lamp", "carpet of the hall"]),
    ("Pick the furniture.", ["couch", "sofa", "table", "chair", "bed", "bench", "stool"]),
    ("In the living room there is a red", ["couch", "sofa", "dog"]),
    ("The film was a waste of two hours. Is this review positive or negative?",
     ["negative", "positive"]),
    ("What is the capital of Peru?", ["Lima", "Quito", "La Paz", "Bogota", "Santiago"]),
    ("Does the word bank mean the same in both sentences? He swam to the bank. She went to the "
     "bank to borrow money for a house that stood empty since the war. ", ["No", "Yes"]),
    ("Say it twice.", ["echo", "echo"]),
    ("", ["an answer to nothing", "nothing"]),
    ("Which of these two sounds better? I bought a new", ["sofa today", "couch today"]),
    (
        "Sarah was a much better surgeon than Maria, so the hard cases always went to her, and on "
        "the days when the list was long and the corridor full of people who waited she did not "
        "go home before midnight. Who does her refer to, Sarah or Maria?",
        ["Sarah", "Maria"],
    ),
    ("How many legs has a spider?", ["Eight", "Six", "Four", "A hundred", "None at all"]),
]  # fmt: skip


def tokens(text):
    """Token ids of a text, without EOS."""
    return np.array(
        [
            TWINS.get(word, 3 + zlib.crc32(word.encode()) % (VOCABULARY - 5))
            for word in text.split()
        ],
        np.int32,
    )


def examples():
    """Pairs of input ids and the choices' ids, which end in EOS."""
    return [
        (tokens(text), [np.append(tokens(choice), np.int32(EOS)) for choice in choices])
        for text, choices in EXAMPLES
    ]


def records():
    """The same as records of a task, one for each choice, shuffled; the first is right."""
    made = [
        {
            "idx": np.array([idx, number], np.int32),
            "inputs": inputs,
            "targets": choice,
            "is_correct": number == 0,
            "weight": np.float32(1),
            "inputs_pretokenized": EXAMPLES[idx][0],
            "targets_pretokenized": EXAMPLES[idx][1][number],
        }
        for idx, (inputs, choices) in enumerate(examples())
        for number, choice in enumerate(choices)
    ]
    return [made[i] for i in np.random.default_rng(0).permutation(len(made))]


def twin_variables(variables, apart=1e-4):
    """The weights with the second twin's table rows next to the first's."""
    first, second = TWINS.values()
    rng = np.random.default_rng(1)
    changed = dict(variables)
    for name, axis in (("shared/embedding", 0), ("decoder/logits/kernel", 1)):
        value = np.moveaxis(changed[name].copy(), axis, 0)
        value[second] = value[first] + apart * rng.normal(size=value[first].shape)
        changed[name] = np.moveaxis(value, 0, axis)
    return changed

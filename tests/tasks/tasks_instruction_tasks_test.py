"""Instructions: their spelling, and the encodings of Tk-Instruct's experiments."""

import dataclasses

import pytest

from t0.errors import UserError
from t0.sources.instructions import Demonstration, Instance, Task
from t0.tasks.instruction_tasks import (
    MIXED,
    VARIANTS,
    Switches,
    draw_switches,
    input_parts,
    switches_of,
)

TASK = Task(
    name="task9_weather",
    category="Misc.",
    definition=" Say which weather it is\n",
    positives=(
        Demonstration(" wet", "rain ", "Rain is wet."),
        Demonstration("cold?", "snow", "Snow is cold"),
        Demonstration("hot", "sun", None),
    ),
    negatives=(Demonstration("loud", "fog!", "Fog is still"),),
    languages=frozenset({"English"}),
    instances=(),
)
INSTANCE = Instance("i1", "It pours ", ("rain",))

DEFINITION = "Definition: Say which weather it is.\n\n"
NOW = "Now complete the following example -\nInput: It pours.\nOutput: "
ONE = " Positive Example 1 -\nInput: wet.\n Output: rain.\n"
TWO = " Positive Example 2 -\nInput: cold?\n Output: snow.\n"
THREE = " Positive Example 3 -\nInput: hot.\n Output: sun.\n"
NOT = " Negative Example 1 -\nInput: loud.\n Output: fog!\n"
WHY_ONE, WHY_TWO = " Explanation: Rain is wet.\n", " Explanation: Snow is cold.\n"
WHY_NOT = " Explanation: Fog is still.\n"

INPUTS = {
    "sni_input": NOW,
    "sni_name": f"task9_weather. {NOW}",
    "sni_def": DEFINITION + NOW,
    "sni_pos_2": f"{ONE}\n{TWO}\n{NOW}",
    "sni_def_pos_1": f"{DEFINITION}{ONE}\n{NOW}",
    "sni_def_pos_2": f"{DEFINITION}{ONE}\n{TWO}\n{NOW}",
    # The task has three positive examples, one negative, and one explanation too few.
    "sni_def_pos_4": f"{DEFINITION}{ONE}\n{TWO}\n{THREE}\n{NOW}",
    "sni_def_pos_2_neg_2": f"{DEFINITION}{ONE}\n{TWO}\n{NOT}\n{NOW}",
    "sni_def_pos_2_neg_2_expl": (
        f"{DEFINITION}{ONE}{WHY_ONE}\n{TWO}{WHY_TWO}\n{NOT}{WHY_NOT}\n{NOW}"
    ),
    "sni_def_pos_3_expl": f"{DEFINITION}{ONE}{WHY_ONE}\n{TWO}{WHY_TWO}\n{THREE}\n{NOW}",
}


@pytest.mark.parametrize("name", INPUTS)
def test_instruction_inputs_equal_tk_instruct(name):
    parts = input_parts(TASK, INSTANCE, switches_of(name)).values()
    assert "".join("".join(part) for part in parts) == INPUTS[name]


def test_instruction_input_gets_a_full_stop_if_missing():
    for text, wanted in (("a", "a."), ("a:", "a:"), ("a…", "a…."), ("", ".")):
        instance = dataclasses.replace(INSTANCE, input=text)
        parts = input_parts(TASK, instance, Switches())
        assert parts["instance"].splitlines()[1] == f"Input: {wanted}"


def test_instruction_task_names_give_the_encoding():
    assert switches_of("sni_name_def_pos_1_neg_3_expl") == Switches(True, True, 1, 3, True)
    assert switches_of("sni_input") == Switches()
    for name in ("sni", "sni_pos", "sni_expl_def", "sni_def_pos_10", "def_pos_2", MIXED):
        with pytest.raises(UserError, match=f"'{name}' is not an encoding"):
            switches_of(name)


def test_instruction_variants_equal_tk_instruct():
    assert next(iter(VARIANTS)) == "sni_def_pos_2"
    assert VARIANTS["sni_def_pos_2"] == (Switches(definition=True, positives=2),)
    assert all(VARIANTS[name] == (switches_of(name),) for name in VARIANTS if name != MIXED)
    assert [
        (s.name, s.definition, s.positives, s.negatives, s.explanations) for s in VARIANTS[MIXED]
    ] == [
        (False, True, 0, 0, False),
        (False, False, 2, 0, False),
        (False, True, 2, 0, False),
        (False, True, 2, 2, False),
        (False, True, 2, 0, True),
    ]


def test_instruction_mixed_encoding_is_sampled_by_seed():
    instances = [Instance(f"i{n}", "", ("",)) for n in range(60)]

    def draws(seed):
        return [draw_switches(VARIANTS[MIXED], instance, seed) for instance in instances]

    assert set(draws(0)) == set(VARIANTS[MIXED])
    assert draws(0) == draws(0) != draws(1)

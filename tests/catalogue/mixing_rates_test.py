"""Mixing rates of the user's mixtures equal those of SeqIO's own functions."""

import functools
import json

import numpy as np
import pytest
import scipy.stats
import yaml

from t0.catalogue import listing
from t0.catalogue.mixing_rates import MixingRate, is_capped

MIXTURES = """
mixed:
  temperature: 2.0
  tasks:
    - {task: 'reviews_.*', exclude: '.*_score_eval', cap: 3}
    - {task: super_glue_copa_exercise, cap: 200, scale: 0.9}
    - {mixture: t0_train_one_og_prompt, rate: 500}
    - {mixture: inner, rate: 7, temperature: 1}
inner:
  tasks:
    - sciq_Multiple_Choice
    - {task: 'amazon_polarity_.*', exclude: '.*(_score_eval|_good)', rate: t0, scale: 2}
    - {task: sciq_Direct_Question, rate: 12, temperature: 3}
    - {mixture: innermost, rate: 0.5}
innermost:
  tasks: [sciq_Multiple_Choice, super_glue_rte_GPT_3_style, {task: reviews_which, rate: 3}]
"""


def write_own(folder):
    from t0.testing import write_rows, write_templates

    write_templates(
        folder / "reviews", {"which": ("{{t}} ||| {{answer_choices[l]}}", "sad ||| glad")}
    )
    write_rows(folder / "reviews" / "train.jsonl", [{"t": "rain", "l": 0}] * 5)
    (folder / "mixtures.yaml").write_text(MIXTURES)


def add_with_seqio(seqio):
    """Defines the same mixtures with SeqIO's functions; "inner" has T0's rates from its own table."""
    by_examples = functools.partial(
        functools.partial, seqio.mixing_rate_num_examples, temperature=2.0
    )
    plain = functools.partial(seqio.mixing_rate_num_examples, maximum=500_000)
    seqio.MixtureRegistry.add(
        "seqio_innermost",
        [
            ("sciq_Multiple_Choice", plain),
            ("super_glue_rte_GPT_3_style", plain),
            ("reviews_which", 3),
        ],
    )
    amazon = [
        name
        for name in seqio.TaskRegistry.names()
        if name.startswith("amazon_polarity_") and not name.endswith(("_score_eval", "_good"))
    ]
    assert len(amazon) > 5
    seqio.MixtureRegistry.add(
        "seqio_inner",
        [
            ("sciq_Multiple_Choice", plain),
            *((name, 500_000 // 9 * 2) for name in amazon),
            ("sciq_Direct_Question", 12 ** (1 / 3)),
            ("seqio_innermost", 0.5),
        ],
    )
    seqio.MixtureRegistry.add(
        "seqio_mixed",
        [
            ("reviews_which", by_examples(maximum=3)),
            ("super_glue_copa_exercise", by_examples(maximum=200, scale=0.9)),
            ("t0_train_one_og_prompt", 500**0.5),
            ("seqio_inner", 7),
        ],
    )


@pytest.fixture
def own(imported, tmp_path, monkeypatch):
    write_own(tmp_path)
    with imported(tmp_path):
        monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
        yield listing.read_listing()


def test_rates_of_own_mixtures_equal_seqio_exactly(own):
    import seqio

    add_with_seqio(seqio)
    for name in ("innermost", "inner", "mixed"):
        ours, theirs = seqio.MixtureRegistry.get(name), seqio.MixtureRegistry.get(f"seqio_{name}")
        expected = [(task.name, theirs.get_rate(task)) for task in theirs.tasks]
        assert [(task.name, ours.get_rate(task)) for task in ours.tasks] == expected
        assert own.members(name) == expected
        assert own.select(name) == [task for task, _ in expected]
    rates = dict(own.members("mixed"))
    assert len(rates) > 40
    assert rates["reviews_which"] > 3**0.5  # it is in the innermost mixture as well


def test_capped_tasks_of_own_mixtures(own):
    assert {"reviews_which", "super_glue_copa_exercise"} < own.capped("mixed")
    assert "sciq_Multiple_Choice" not in own.capped("mixed")
    assert own.capped("innermost") == set()
    (amazon,) = {name for name in own.capped("t0_train_one_og_prompt") if "amazon" in name}
    assert dict(own.members("t0_train"))[amazon] == 500_000 // 9
    assert own.capped("t0_eval_score_eval") == set()


def test_sampling_frequencies_fit_the_rates(own):
    from t0.feeding.mixing import DRAWS, MixedStream

    members = own.members("mixed")
    rates = np.array([rate for _, rate in members])
    stream = MixedStream([None] * len(rates), rates.tolist(), seed=3)
    draws = stream.tasks_of(0, -(-100_000 // DRAWS))
    counts = np.bincount(draws, minlength=len(rates))
    expected = draws.size * rates / rates.sum()
    # Tasks that are expected fewer than 5 times are counted together, as the test requires.
    few = expected < 5
    observed = np.append(counts[~few], counts[few].sum())
    expected = np.append(expected[~few], expected[few].sum())
    assert scipy.stats.chisquare(observed, expected).pvalue > 0.001
    # The same draws do not fit rates that ignore the temperature.
    squares = draws.size * rates**2 / (rates**2).sum()
    assert scipy.stats.chisquare(counts, squares).pvalue < 1e-9


@pytest.mark.parametrize("examples", [1, 2490, 650_000])
@pytest.mark.parametrize("maximum", [None, 200, 3000.5])
@pytest.mark.parametrize("scale", [1.0, 0.3, 7])
@pytest.mark.parametrize("temperature", [1.0, 2, 3.7])
def test_mixing_rate_equals_seqio_arithmetic(examples, maximum, scale, temperature):
    import seqio

    class Task:
        name, cache_dir, splits = "task", None, ("train",)

        def num_input_examples(self, split):
            return examples

    rate = MixingRate(examples, maximum or float("inf"), scale, temperature)
    expected = seqio.mixing_rate_num_examples(Task(), maximum, scale, temperature)
    assert rate(None) == expected
    assert rate.is_capped(None) == bool(maximum and examples * scale > maximum)


def test_functions_of_other_packages_are_not_capped():
    assert not is_capped(lambda task: 3, None)
    assert not is_capped(7, None)


def test_tasks_command_prints_rates_shares_epochs_and_caps(own, capsys, tmp_path):
    from t0.cli.main import main

    arguments = ["tasks", "mixed", "--rates", "--steps=10", "--examples_per_step=100"]
    assert main([*arguments, "--json"]) == 0
    rows = {row["task"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows["reviews_which"]) == {"task", "rate", "share", "epochs", "capped"}
    assert {task: row["rate"] for task, row in rows.items()} == dict(own.members("mixed"))
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    share = rows["reviews_which"]["share"]
    assert rows["reviews_which"]["epochs"] == pytest.approx(10 * 100 * share / 5)
    assert rows["reviews_which"]["capped"] is True
    assert rows["super_glue_rte_GPT_3_style"]["capped"] is False
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["task", "rate", "share", "epochs", "capped"]
    (line,) = (line for line in lines if line.startswith("super_glue_copa_exercise"))
    assert line.split()[1] == "14.14"
    assert line.endswith("yes")
    assert main(["tasks", "mixed", "--rates", "--json"]) == 0
    assert {row["epochs"] for row in json.loads(capsys.readouterr().out)} == {None}


def test_tasks_command_prints_rates_of_registered_mixtures(own, capsys):
    from t0.cli.main import main

    arguments = ["tasks", "mixed", "--rates", "--steps=10", "--json"]
    assert main(arguments) == 0
    expected = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--module_import=t0.seqio_tasks"]) == 0
    assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["mixd", "--rates"], "unknown mixture 'mixd'. Did you mean 'mixed'"),
        (["--rates"], "Name a mixture: t0 tasks MIXTURE --rates"),
        (["mixed", "--steps=3"], "add --rates"),
        (["mixed", "--rates", "--steps=0"], "--steps is 0"),
    ],
)
def test_tasks_command_refuses_wrong_rate_flags(own, capsys, arguments, told):
    from t0.cli.main import main

    with pytest.raises(SystemExit):
        main(["tasks", *arguments])
    assert told in capsys.readouterr().err


def test_gin_defines_mixtures(own):
    import gin
    import seqio

    from t0.feeding.data_spec import known_mixture

    define = yaml.safe_load(MIXTURES.replace("mixed:", "of_gin:").replace("innermost", "inmost"))
    define["deep"] = define.pop("inner")
    define["of_gin"]["tasks"][-1]["mixture"] = "deep"
    gin.bind_parameter("mixtures.define", define)
    try:
        for _ in range(2):  # the second call registers nothing again
            mixture = known_mixture("of_gin")
        expected = seqio.MixtureRegistry.get("mixed")
        rates = [mixture.get_rate(task) for task in mixture.tasks]
        assert rates == [expected.get_rate(task) for task in expected.tasks]
    finally:
        gin.clear_config()

"""The members of the user's mixtures: selection, mixtures in mixtures, limits and mistakes."""

from pathlib import Path

import pytest

from t0.catalogue import mixture_members
from t0.catalogue.mixing_rates import MixingRate
from t0.catalogue.mixture_members import own_mixture_tasks, resolve_mixtures
from t0.errors import UserError
from t0.sources.mixture_files import read_mixtures

TASKS = ["a.b", "axb", "a" * 40, "mine_good", "mine_good_score_eval"]
PATH = Path("mixtures.yaml")


def members(*entries, **more):
    (mixture,) = read_mixtures({"one": {"tasks": list(entries), "rate": 1.0, **more}}, PATH)
    return own_mixture_tasks(mixture, TASKS, ["inner"])


def names(*entries, **more):
    return [name for name, _ in members(*entries, **more)]


def resolve(content):
    return resolve_mixtures(read_mixtures(content, PATH), TASKS, {"t0": [("axb", 1.0)]})


def test_own_mixture_selects_names_and_expressions():
    assert names("mine_good", "a.b") == ["mine_good", "a.b", "axb"]
    assert names("(?!mine).*b", "(?i)MINE_GOOD") == ["a.b", "axb", "mine_good"]
    assert names("mine.*", exclude=".*_score_eval") == ["mine_good"]
    assert names("axb", {"task": "mine.*", "exclude": ".*_score_eval"}) == ["axb", "mine_good"]


def test_own_mixture_expressions_have_a_time_limit(monkeypatch):
    monkeypatch.setattr(mixture_members, "_MATCHING_SECONDS", 0.2)
    with pytest.raises(UserError, match=r"mixtures.yaml: mixture 'one': .*takes over 0.2 s"):
        names("(a|aa)+#")
    with pytest.raises(UserError, match=r"mixtures.yaml: mixture 'one': .*takes over 0.2 s"):
        names({"task": "a+", "exclude": "(a|aa)+#"})
    with pytest.raises(UserError, match="unknown task"):
        names("((.+)+)+#")


def test_own_mixture_numbers_become_rates():
    assert members("axb", {"mixture": "inner", "rate": 500, "cap": 400, "temperature": 2}) == [
        ("axb", 1.0),
        ("inner", 20.0),
    ]
    ((_, rate),) = members({"task": "axb", "rate": 9, "scale": 2, "cap": 16, "temperature": 2})
    assert rate == MixingRate(9, 16, 2, 2)
    assert rate(None) == 4.0
    assert rate.is_capped(None)


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        (["a.b", {"task": "axb", "rate": 2}], r"'axb' has two rates, .*'a\.b' and 'axb' both"),
        (
            [{"mixture": "inner", "rate": 2}, {"mixture": "inner", "rate": 3}],
            "'inner' has two rates",
        ),
        (["nothing.*"], "unknown task 'nothing"),
        (["inner"], "It is a mixture: write {mixture: inner, rate: 500}"),
        ([{"mixture": "iner", "rate": 2}], "unknown mixture 'iner'. Did you mean 'inner'"),
        ([{"task": "axb", "exclude": "a.*"}], "'a.*' excludes all tasks that 'axb' selects"),
        ([{"task": "axb", "rate": "t0"}], "rate 't0' is for tasks with a prompt, and 'axb' has"),
        (
            [{"task": "axb", "rate": 9, "temperature": 1e-9}],
            "mixing rate of a mixture is inf, computed from 9 with .*temperature 1e-09",
        ),
        ([{"task": "axb", "rate": 1e-300, "scale": 1e-300}], "mixing rate of a mixture is 0, "),
    ],
)
def test_own_mixture_with_mistake_names_the_members(entries, told):
    with pytest.raises(UserError, match=told) as error:
        members(*entries)
    assert "mixtures.yaml" in str(error.value)


def test_own_mixture_follows_the_mixtures_in_it():
    content = {
        "outer": {"tasks": [{"mixture": "inner", "rate": 2}, {"mixture": "t0", "rate": 1}]},
        "inner": {"tasks": ["axb"], "rate": 1},
    }
    assert list(resolve(content).items()) == [
        ("inner", [("axb", 1.0)]),
        ("outer", [("inner", 2.0), ("t0", 1.0)]),
    ]


def _contains(**inner):
    """Returns mixtures, each of which contains the mixtures that a list names."""
    return {
        name: {"tasks": [{"mixture": m, "rate": 1} for m in others] or ["axb"]}
        for name, others in inner.items()
    }


def test_own_mixture_that_contains_itself_is_refused():
    with pytest.raises(UserError, match="mixture 'a' contains itself: a > a"):
        resolve(_contains(a=["a"]))
    with pytest.raises(UserError, match="mixture 'b' contains itself: b > c > b"):
        resolve(_contains(a=["b"], b=["c"], c=["b"]))


def test_own_mixtures_in_mixtures_have_limits():
    # 2^12 paths lead to the last mixture of this ladder.
    ladder = {f"m{n}{s}": [f"m{n + 1}{t}" for t in "xy"] for n in range(12) for s in "xy"}
    chain = {f"c{n}": [f"c{n + 1}"] for n in range(5_000)}
    for content in (ladder | {"m12x": [], "m12y": []}, chain | {"c5000": []}):
        with pytest.raises(UserError, match="contains too many mixtures. Expected at most 1,000"):
            resolve(_contains(**content))


@pytest.mark.parametrize("name", ["t0", "axb"])
def test_own_mixture_with_taken_name_is_refused(name):
    with pytest.raises(UserError, match=f"task or mixture '{name}' exists already"):
        resolve({name: {"tasks": ["a.b"]}})

"""`mixtures.yaml`: its members, and the messages about mistakes in it."""

import pytest
import yaml

from t0.errors import UserError
from t0.prompts.few_shot import FewShot
from t0.sources import OwnMixture, find_own_mixtures
from t0.sources.mixture_files import MixtureMember, read_mixtures

FORM = """
mine:
  temperature: 2.0
  cap: 9
  tasks:
    - plain
    - {task: 'reviews_.*', exclude: '.*_score_eval', cap: 3000}
    - {task: copa, scale: 0.5, temperature: 1}
    - {mixture: t0_train, rate: 500}
"""


def test_mixture_file_tasks_and_rates(tmp_path):
    path = tmp_path / "mixtures.yaml"
    path.write_text("one:\n  tasks: ['a_.*', b]\ntwo: {tasks: [c], rate: 12.5}\n")
    one, two = find_own_mixtures([tmp_path])
    assert one == OwnMixture("one", (MixtureMember("a_.*"), MixtureMember("b")), path)
    assert two == OwnMixture("two", (MixtureMember("c", rate=12.5),), path)
    assert find_own_mixtures([]) == find_own_mixtures([tmp_path / "none"]) == []


def test_mixture_file_members_inherit_keys(tmp_path):
    path = tmp_path / "mixtures.yaml"
    path.write_text(FORM)
    (mixture,) = find_own_mixtures([tmp_path])
    assert mixture.members == (
        MixtureMember("plain", temperature=2.0, cap=9),
        MixtureMember("reviews_.*", exclude=".*_score_eval", temperature=2.0, cap=3000),
        MixtureMember("copa", scale=0.5, temperature=1.0, cap=9),
        MixtureMember(mixture="t0_train", rate=500, temperature=2.0, cap=9),
    )
    assert read_mixtures(yaml.safe_load(FORM), "gin")[0].members == mixture.members


def test_mixture_file_few_shot_settings():
    def settings(**options):
        entry = {"tasks": ["a"], "few_shot": {"of": ["b.*"], "k": 4, **options}}
        (mixture,) = read_mixtures({"m": entry}, "gin")
        assert mixture.few_shot.of == ("b.*",)
        return mixture.few_shot.settings

    assert settings() == FewShot(4, length=1024)
    assert settings(budget=900) == FewShot(4, budget=900, length=1024)
    assert settings(budget=1920) == FewShot(4, budget=1920, length=2048)  # FLAN's
    assert settings(length=512, store=False).length == 512


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", ":2: not a file of mixtures"),
        ("- a", "got list"),
        ("", "got NoneType"),
        ("m: x", "mixture 'm'"),
        ("3: {tasks: [a]}", "mixture '3'"),
        ("m: {rate: 1}", "key 'tasks'"),
        ("m: {tasks: []}", "key 'tasks'"),
        ("m: {tasks: a}", "key 'tasks'"),
        ("m: {tasks: [1]}", "key 'tasks'"),
        ("m: {tasks: {a: 1}}", "key 'tasks'"),
        ("m: {tasks: [!!binary 'YQ==']}", "key 'tasks'"),
        ("m: {tasks: ['(']}", "key 'tasks'.*regular expression"),
        (f"m: {{tasks: ['{'(' * 900}']}}", "key 'tasks'.*regular expression"),
        ("[" * 10**5, "nested more than 100 levels deep"),
        ("m: {tasks: [a], rate: fast}", "key 'rate'"),
        ("m: {tasks: [a], rate: 0}", "key 'rate'"),
        ("m: {tasks: [a], rate: .inf}", "key 'rate'"),
        ("m: {tasks: [a], rate: .nan}", "key 'rate'"),
        (f"m: {{tasks: [a], rate: {10**400}}}", "key 'rate'"),
        ("m: {tasks: [a], rate: yes}", "key 'rate'"),
        ("m: {tasks: [a], temprature: 1}", "unknown key 'temprature'. Did you mean 'temperature'?"),
        ("m: {tasks: [{task: a, weight: 1}]}", "unknown key 'weight'"),
        ("m: {tasks: [{task: a, 3: 1}]}", "unknown key '3'"),
        ("m: {tasks: [{rate: 1}]}", "members such as"),
        ("m: {tasks: [{task: a, mixture: b}]}", "members such as"),
        ("m: {tasks: [[a]]}", "key 'tasks'"),
        ("m: {tasks: [{task: '('}]}", "key 'tasks'.*regular expression"),
        ("m: {tasks: [{task: a, exclude: '('}]}", "key 'exclude'.*unterminated subpattern"),
        ("m: {tasks: [{task: a, exclude: 3}]}", "key 'exclude'.*got 3"),
        ("m: {tasks: [{task: a, rate: -1}]}", "key 'rate' must be 'examples', 't0' or a number"),
        ("m: {tasks: [{task: a, rate: 0}]}", "key 'rate'.*got 0"),
        ("m: {tasks: [{task: a, rate: .nan}]}", "key 'rate'.*got nan"),
        ("m: {tasks: [{task: a, cap: -3}]}", "key 'cap' must be a number above 0, got -3"),
        ("m: {tasks: [{task: a, scale: .nan}]}", "key 'scale'.*got nan"),
        ("m: {tasks: [{task: a, temperature: 0}]}", "key 'temperature'.*got 0"),
        ("m: {tasks: [a], temperature: .inf}", "key 'temperature'.*got inf"),
        ("m: {tasks: [a], cap: examples}", "key 'cap'"),
        ("m: {tasks: [{mixture: b}]}", "the rate of a mixture must be a number"),
        ("m: {tasks: [{mixture: 3, rate: 1}]}", "key 'mixture'"),
        ("m: {tasks: [{mixture: b, rate: 1, exclude: x}]}", "'exclude' is for tasks"),
        ("m: {tasks: [a], few_shot: 4}", "key 'few_shot' must be like .*got 4"),
        ("m: {tasks: [a], few_shot: {k: 4}}", "key 'few_shot' must be like"),
        ("m: {tasks: [a], few_shot: {of: [a]}}", "key 'few_shot' must be like"),
        ("m: {tasks: [a], few_shot: {of: ['('], k: 4}}", "'few_shot'.*unterminated subpattern"),
        ("m: {tasks: [a], few_shot: {of: [a], k: 0}}", "k is 0; expected a whole number from 1"),
        ("m: {tasks: [a], few_shot: {of: [a], k: 1, outer_templates: [Q]}}", "outer template 'Q'"),
        ("m: {tasks: [a], few_shot: {of: [a], k: .nan}}", "k is nan; expected a finite number"),
        ("m: {tasks: [a], few_shot: {of: [a], k: 4, budget: -1}}", "budget is -1; expected"),
        ("m: {tasks: [a], few_shot: {of: [a], k: 4, seeds: 1}}", "'seeds'. Did you mean 'seed'?"),
        ("m: {tasks: [a], few_shot: {of: [a], k: 4, balance: x}}", "balance is 'x'"),
    ],
)
def test_malformed_mixture_names_file_and_key(tmp_path, text, told):
    (tmp_path / "mixtures.yaml").write_text(text)
    with pytest.raises(UserError, match=told) as error:
        find_own_mixtures([tmp_path])
    assert str(tmp_path / "mixtures.yaml") in str(error.value)


def test_duplicate_mixture_name_is_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mixtures.yaml").write_text("m: {tasks: [x]}")
    with pytest.raises(UserError, match="'m'"):
        find_own_mixtures([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ("x," * 300_000, "more than 200,000 values"),
        ("x," * 10_001, "at most 10,000 of at most 1,000 characters"),
        ("x" * 1_001, "at most 10,000 of at most 1,000 characters"),
    ],
)
def test_mixture_file_that_is_too_large_is_refused(tmp_path, tasks, told):
    (tmp_path / "mixtures.yaml").write_text(f"one: {{tasks: [{tasks}]}}")
    with pytest.raises(UserError, match=told):
        find_own_mixtures([tmp_path])

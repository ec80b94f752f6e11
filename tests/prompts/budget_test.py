"""Hostile templates end in one line, soon and within memory; others render as without a meter."""

import dataclasses
import pickle
import time
import tracemalloc

import pytest

from t0.errors import UserError
from t0.prompts import CompiledTemplate, Template
from t0.prompts.budget import Limits

ROW = {"text": "a b c", "words": ["x", "y", "z"], "n": 3, "big": "w" * 5000, "deep": {"k": [1, 2]}}


def template(jinja, choices=None):
    return Template("mine", jinja, choices, "", False, False, (), "id", where="t.yaml:3")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setenv("T0_TEMPLATE_SECONDS", "0.5")
    monkeypatch.setenv("T0_TEMPLATE_CHARACTERS", "1e6")


LOOP = "{%% for i in range(99999) %%}%s{%% endfor %%}"
HOSTILE = [
    LOOP % "{% for j in range(99999) %}{% endfor %}",
    LOOP % (LOOP % "x"),
    LOOP % ("y" * 500),
    "{% set ns = namespace(s='ab') %}" + LOOP % "{% set ns.s = ns.s ~ ns.s %}",
    "{% set ns = namespace(s='ab') %}" + LOOP % "{% set ns.s = ns.s + ns.s %}",
    "{% set ns = namespace(s=[1]) %}" + LOOP % "{% set ns.s = ns.s * 2 %}",
    "{% set ns = namespace(s='ab') %}" + LOOP % "{% set ns.s = [ns.s, ns.s] | join %}",
    "{% set ns = namespace(s='ab') %}" + LOOP % "{% set ns.s = '%s%s' | format(ns.s, ns.s) %}",
    "{% set ns = namespace(s='ab') %}"
    + LOOP % "{% set x %}{% print ns.s %}{% endset %}{% set ns.s = x ~ x %}",
    "{% set l = [] %}" + LOOP % "{{ l.append(big.upper()) or '' }}",
    "{% set l = [] %}" + LOOP % "{{ l.append(big[1:]) or '' }}",
    "{% macro m() %}" + LOOP % "{% print big %}" + "{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ 'a' * 10000000000 }}",
    "{{ [0] * 10000000000 }}",
    "{{ 9 ** 9 ** 9 ** 9 }}",
    "{{ 'a' | center(10000000000) }}",
    "{{ 'a'.center(10000000000) }}",
    "{{ 'a'.zfill(10000000000) }}",
    "{{ '{:>10000000000}'.format('a') }}",
    "{{ '{:>{}}'.format('a', 10000000000) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10000000000, 1) }}",
    "{{ '%10000000000d' | format(1) }}",
    "{{ big | replace('', big) }}",
    "{{ big.replace('w', big) }}",
    "{{ big.join(range(99999)) }}",
    "{{ range(99999) | join(big) }}",
    "{{ '\\t'.expandtabs(10000000000) }}",
    "{{ words | batch(10000000000, 'x') | list }}",
    "{{ 'a\\nb' | indent(10000000000) }}",
    "{{ 1 | round(10000000000) }}",
    "{{ words | map('center', 10000000000) | list }}",
]
TOO_LARGE = [
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "-" * 5000 + "1 }}",
    "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
]


@pytest.mark.parametrize("jinja", [*HOSTILE, *TOO_LARGE], ids=range(len(HOSTILE + TOO_LARGE)))
def test_template_sandbox_time_and_memory_limit(small, jinja):
    prompt = CompiledTemplate(template(jinja + " ||| x"))
    tracemalloc.start()
    began = time.thread_time()
    try:
        with pytest.raises(UserError, match=r"^t.yaml:3: template 'mine'") as caught:
            prompt.example(ROW, 7)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.thread_time() - began < 8
    assert peak < 100 * 2**20
    assert len(str(caught.value)) < 500
    if jinja not in TOO_LARGE:
        assert "failed on row 7" in str(caught.value)


def test_template_time_limit_error_names_its_variable(small):
    with pytest.raises(UserError, match=r"more than 0.5 s of CPU time .*T0_TEMPLATE_SECONDS"):
        CompiledTemplate(template(HOSTILE[0])).example(ROW)
    with pytest.raises(UserError, match="more than 1,000,000 char.*T0_TEMPLATE_CHARACTERS"):
        CompiledTemplate(template(HOSTILE[2])).example(ROW)


def test_template_limits_apply_per_row_and_are_configured(monkeypatch):
    monkeypatch.setenv("T0_TEMPLATE_CHARACTERS", "6000")
    source = "{% for w in ['x'] %}{% print big %}{% endfor %} ||| x"
    prompt = CompiledTemplate(template(source))
    for index in range(5):
        assert prompt.example(ROW, index).inputs == ROW["big"]
    made = "{% for w in ['x'] %}{% set y = big ~ w %}{% print w %}{% endfor %} ||| x"
    prompt = CompiledTemplate(template(made))
    for index in range(5):
        assert prompt.example(ROW, index).inputs == "x"
    monkeypatch.setenv("T0_TEMPLATE_CHARACTERS", "4000")
    with pytest.raises(UserError, match="more than 4,000 characters"):
        CompiledTemplate(template(source)).example(ROW)
    for text in ("many", "0", "-1", "nan", "inf"):
        monkeypatch.setenv("T0_TEMPLATE_SECONDS", text)
        with pytest.raises(UserError, match=f"T0_TEMPLATE_SECONDS is '{text}'; expected a number"):
            Limits.configured()


PLAIN = [
    "{% for w in words %}{{ loop.index }}/{{ loop.length }} {{ w | upper }}{% if not loop.last %}, "
    "{% endif %}{% else %}none{% endfor %} ||| {{ (n + 1) }}",
    "{% for w in words if w != 'y' %}{{w}}{{loop.previtem}}{% endfor %} ||| {{(n*2)}} {{(7%4)}}",
    "{% for k, v in deep.items() recursive %}{{k}}{{v | join('-')}}{% endfor %} ||| {{(2 ** n)}}",
    "{% for a, b in zip(words, text.split()) %}{{ a ~ b }}{% endfor %} ||| {{ words[1:] | list }}",
    "{% filter upper %}{{ text }}{% endfilter %}{% set x | trim %} {{n}} {% endset %} ||| {{x}}",
    "{% macro m(a) %}[{{ a }}{{ caller() }}]{% endmacro %}{% call m(n) %}c{% endcall %} ||| t",
    "{{ ('%s-%d' % (text, n)) }} {{ '{0:>4}'.format(n) }} {{ 'a,b'.split(',') | join(' ') }} ||| t",
    "{{ text | wordwrap(2) | indent(3) | replace('b', 'q') }} {{ words | batch(2) | list }} ||| t",
    "{{ deep | tojson }} {{ 2.567 | round(1) }} {{ words | map('upper') | join(d=';') }} ||| t",
    "{% for x in nothing %}{{x}}{% else %}no{% endfor %} {{ (n * 'ab') }} {{ ([1] + [n]) }} ||| t",
]


@pytest.mark.parametrize("jinja", PLAIN)
def test_template_sandbox_does_not_change_the_output(jinja):
    own = template(jinja)
    published = dataclasses.replace(own, published=True)
    assert CompiledTemplate(own).example(ROW) == CompiledTemplate(published).example(ROW)
    assert CompiledTemplate(own).columns == CompiledTemplate(published).columns


def test_template_that_is_too_long_to_compile_is_refused():
    long = "{{text}}" * 6251
    for one in (template(long), template("{{text}}", long)):
        with pytest.raises(UserError, match=r"t.yaml:3: .* has 50,008 characters, more than 50"):
            CompiledTemplate(one).compile()
    with pytest.raises(UserError, match="make it shorter"):
        _ = CompiledTemplate(template(long)).columns
    text = "a" * 60_000
    published = dataclasses.replace(template(f"{text}{{{{n}}}} ||| b"), published=True)
    assert CompiledTemplate(published).example(ROW).inputs == f"{text}3"


def test_published_template_of_a_file_is_metered_and_keeps_its_rendering(small):
    for jinja in (HOSTILE[0], HOSTILE[2]):
        published = dataclasses.replace(template(f"{jinja} ||| x"), published=True)
        prompt = pickle.loads(pickle.dumps(CompiledTemplate(published, metered=True)))
        with pytest.raises(UserError, match="T0_TEMPLATE_(SECONDS|CHARACTERS) sets the limit"):
            prompt.example(ROW, 7)
    long = dataclasses.replace(template("{{text}}" * 6251), published=True)
    with pytest.raises(UserError, match="more than 50,000"):
        CompiledTemplate(long, metered=True).compile()
    source = "{{words | join(', ')}} {{words[1:]}} {{n * 2}} ||| {{answer_choices[n]}}"
    published = dataclasses.replace(template(source, "no ||| yes"), published=True)
    metered = CompiledTemplate(published, metered=True).example(ROW)
    assert metered == CompiledTemplate(published).example(ROW)
    assert metered.targets == "<NO LABEL>"  # as promptsource: 3 selects no choice

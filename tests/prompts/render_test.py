import dataclasses
import math
import pickle
from decimal import Decimal
from pathlib import Path

import jinja2
import pytest
from jinja2.sandbox import SandboxedEnvironment

from t0.errors import UserError
from t0.prompts import (
    NO_LABEL,
    CompiledTemplate,
    Example,
    Template,
    compile_template,
    prepared,
    read_template_file,
)

WEATHER = Path(__file__).parent / "fixtures" / "weather" / "templates.yaml"
TEMPLATES = {template.name: template for template in read_template_file(WEATHER).templates}
ROW = {"report": "Rain.", "place": "Bergen", "options": ["x", "y", "x"], "label": 1}


def template(jinja: str, answer_choices: str | None = None) -> Template:
    return Template(
        name="the name",
        jinja=jinja,
        answer_choices=answer_choices,
        reference="",
        original_task=False,
        choices_in_prompt=False,
        metrics=(),
        id="",
        where="some.yaml:3",
    )


def compiled(jinja: str, answer_choices: str | None = None, **kwargs) -> CompiledTemplate:
    return CompiledTemplate(template(jinja, answer_choices), **kwargs)


def lifted(jinja: str) -> CompiledTemplate:
    return CompiledTemplate(dataclasses.replace(template(jinja), truncate=False))


def weather(name: str, seed_name: str = "") -> CompiledTemplate:
    return CompiledTemplate(TEMPLATES[name], seed_name)


class TestExample:
    def test_template_renders_inputs_and_target(self):
        wanted = Example("Rain. Dry or wet?", "wet", ["dry", "wet"])
        assert weather("dry or wet").example(ROW) == wanted

    def test_open_ended_template_has_no_choices(self):
        assert weather("where").example(ROW) == Example("Rain.", "Bergen", None)

    def test_empty_target_becomes_no_label(self):
        example = weather("target only if labelled").example(ROW | {"label": -1})
        assert NO_LABEL == "<NO LABEL>"
        assert example == Example("Rain.", NO_LABEL, ["dry", "wet"])

    def test_target_of_spaces_becomes_no_label(self):
        assert weather("where").example(ROW | {"place": " \n"}).targets == NO_LABEL

    @pytest.mark.parametrize("name", ["three parts", "only wet rows"])
    def test_template_with_other_than_two_parts_is_dropped(self, name):
        prompt = weather(name)
        assert len(prompt.apply(ROW | {"label": 0})) != 2
        assert prompt.example(ROW | {"label": 0}) is None

    def test_row_with_empty_inputs_is_dropped(self):
        assert weather("where").example(ROW | {"report": " "}) is None
        assert weather("where").apply(ROW | {"report": " "}) == ["", "Bergen"]

    def test_column_name_hyphens_become_underscores(self):
        prompt = compiled("{{coarse_label}} ||| {{a_b_c}}")
        assert prompt.example({"coarse-label": 3, "a-b_c": "t"}) == Example("3", "t", None)
        assert prompt.apply({"coarse-label": 3, "a-b_c": "t"}) == ["", ""]

    def test_answer_choices_are_new_for_each_row(self):
        prompt = weather("dry or wet")
        prompt.example(ROW).choices.append("spoiled")
        assert prompt.example(ROW).choices == ["dry", "wet"]

    def test_template_changing_its_answer_choices_changes_no_result(self):
        example = weather("filters and changed lists").example(ROW)
        assert example.targets == "extra"
        assert example.choices == ["xx", "yy", "xx", "none"]

    def test_template_does_not_change_the_row(self):
        row = dict(ROW)
        weather("dry or wet").example(row)
        weather("numbered at random").apply(row)
        assert row == ROW

    @pytest.mark.parametrize(
        "source",
        [
            "{{coarse_label}} {{text}} ||| {{words | join}}",
            "{{text}} {{words | choice}} ||| {{words | choice}}",
            "{{words.append(9)}}{{text}} ||| {{words | join}}",
        ],
    )
    def test_prepared_row_serves_several_templates(self, source):
        row = {"coarse-label": 3, "text": "a ||| b", "words": ["x", "y", "z"]}
        shared = prepared(row)
        prompt, again = compiled(source, "{{text}} ||| {{words[0]}}"), compiled(source)
        for index in range(20):
            assert prompt.example(shared, index) == prompt.example(row, index)
            assert again.example(shared, index) == again.example(row, index)
        assert shared == prepared(row) and row["text"] == "a ||| b"

    @pytest.mark.parametrize(
        "change",
        [
            "{{ words.append(9) }}",
            "{{ words['app' + 'end'](9) }}",
            "{{ (words | attr('app' ~ 'end'))(9) }}",
            "{{ words[method](9) }}",
            "{{ deep.inner[0].update(x=1) }}",
            "{{ dict.update(deep, x=1) }}",
            "{{ [deep].sort(key=dict.popitem) }}",
            "{{ [5].sort(key=words.append) }}",
            "{% macro m(f) %}{{ f(9) }}{% endmacro %}{{ m(words.append) }}",
            "{% set d = {'split': words.append} %}{{ d.split(9) }}",
            "{% for f in [words] | map(attribute='append') %}{{ f(9) }}{% endfor %}",
            "{{ cycler(words.pop).next()() }}",
            "{% if label %}{{ words.clear() }}{% endif %}",
        ],
    )
    @pytest.mark.parametrize("in_choices", [False, True])
    def test_template_that_changes_its_row_gets_a_copy(self, change, in_choices):
        def row(label):
            inner = [{"k": ["v"]}]
            return {"words": [1, 2], "deep": {"inner": inner}, "method": "append", "label": label}

        shown = "{{ words }} {{ deep }} ||| {{ label }}"
        source = (shown, change) if in_choices else (change + shown, None)
        prompt = compiled(*source)
        for label in (0, 1, 2):
            given, own = row(label), row(label)
            example = prompt.example(given)
            assert given == row(label)
            SandboxedEnvironment().from_string(change).render(own)  # changes what it gets
            assert example.inputs.endswith(f"{own['words']} {own['deep']}")
        assert own != row(2)

    def test_random_draws_are_the_same_when_a_row_is_copied(self):
        source = (
            "{{ options | random }} {{ [1, 2, 3, 4, 5, 6, 7, 8] | random }}{{ %s or '' }} ||| x"
        )
        first = compiled(source % "options.append(1)")
        again = compiled(source % "options.append(1)")
        assert again.example(ROW, 4) and [first.example(ROW, n) for n in range(5)][4] == (
            again.example(ROW, 4)
        )
        assert first.example(ROW, 3) == compiled(source % "options.count(1)").example(ROW, 3)


class TestText:
    def test_template_separator_inside_a_column_does_not_split(self):
        assert weather("where").apply(ROW | {"report": "a ||| b"}) == ["a ||| b", "Bergen"]
        assert weather("choices of text").choices(ROW | {"place": "c|||d"}) == ["Rain.", "c|||d"]

    def test_truncation_of_values_at_2048_characters(self):
        inputs, target = weather("where").apply(ROW | {"report": "w" * 5000, "place": "p " * 2000})
        assert inputs == "w" * 2045 + "..."
        assert len(target) <= 2048
        assert target.endswith("...")

    def test_truncation_leaves_slightly_longer_values(self):
        # Jinja's truncate has a leeway of 5 characters.
        assert weather("where").apply(ROW | {"report": "w" * 2053})[0] == "w" * 2053
        assert len(weather("where").apply(ROW | {"report": "w" * 2054})[0]) == 2048

    def test_truncation_is_counted_and_can_be_turned_off(self):
        long = ROW | {"report": "word " * 1000}
        jinja = "{{report}} {% for x in [report, 'short'] %}{{x}}{% endfor %} ||| {{report|upper}}"
        cut = compiled(jinja).example(long)
        assert cut.cut == (5000, 5000, 5000)
        assert cut.targets.endswith("WORD...")
        whole = lifted(jinja).example(long)
        assert whole.cut == ()
        assert whole.targets == ("WORD " * 1000).strip()
        # Nothing else changes: the cut also turns each printed expression into text.
        odd = "{{ label == 1 }} {{ nothing }} {{ none }} ||| {{ ['x', label] }}"
        assert lifted(odd).example(ROW) == compiled(odd).example(ROW)
        assert compiled("{{report}} ||| t").example(ROW).cut == ()
        assert compiled("{{report}} ||| t").example(ROW | {"report": "w" * 2053}).cut == ()

    def test_truncation_does_not_apply_to_answer_choices(self):
        assert weather("choices of text").choices(ROW | {"report": "w" * 5000})[0] == "w" * 5000

    def test_truncation_turns_lists_into_text(self):
        assert compiled("{{options}} ||| t").apply(ROW)[0] == "['x', 'y', 'x']"


class TestChance:
    def test_random_template_is_the_same_for_seed_and_row(self):
        first = [weather("numbered at random", "task").example(ROW, i) for i in range(50)]
        again = [weather("numbered at random", "task").example(ROW, i) for i in range(50)]
        assert first == again

    def test_random_template_differs_by_row_and_seed_name(self):
        prompt = weather("numbered at random", "task")
        texts = {prompt.example(ROW, i).inputs for i in range(50)}
        texts |= {weather("numbered at random", "other").example(ROW, i).inputs for i in range(50)}
        assert len(texts) == 100

    def test_random_template_does_not_depend_on_row_order(self):
        prompt = weather("numbered at random", "task")
        forth = [prompt.example(ROW, i) for i in range(10)]
        back = [prompt.example(ROW, i) for i in reversed(range(10))]
        assert forth == back[::-1]

    def test_random_draws_within_a_row_follow_one_stream(self):
        inputs, target = weather("numbered at random").apply(ROW | {"label": 0})
        assert inputs.split()[1].rstrip(":") != target

    def test_random_answer_choices_are_shared_with_the_body(self):
        prompt = weather("choices at random", "task")
        for i in range(20):
            example = prompt.example(ROW, i)
            drawn, other = example.inputs.split()
            assert example.choices == [drawn, "never"] == prompt.choices(ROW, i)
            assert example.targets == drawn != other

    def test_random_draw_from_constants_is_not_frozen(self):
        prompt = compiled("{{ [1, 2, 3, 4] | choice }}{{ ['a', 'b'] | random }} ||| t")
        assert len({prompt.example({}, i).inputs for i in range(200)}) == 8

    def test_random_answer_choices_are_sampled_for_each_row(self):
        prompt = compiled("{{ answer_choices[0] }} ||| t", "{{ [1, 2, 3, 4] | choice }} ||| no")
        assert {prompt.example({}, i).inputs for i in range(100)} == {"1", "2", "3", "4"}

    def test_random_choice_inside_macro_and_filter_block(self):
        jinja = "{% macro m() %}{{ [7] | choice }}{% endmacro %}{{ m() }} ||| {% filter choice %}k"
        assert compiled(jinja + "{% endfilter %}").apply({}) == ["7", "k"]

    def test_random_template_does_not_use_pythons_generator(self, monkeypatch):
        def forbidden(*args):
            raise AssertionError("used the shared generator")

        monkeypatch.setattr("random.choice", forbidden)
        compiled("{{ [1] | choice }}{{ [1] | random }} ||| t").apply({})
        with pytest.raises(UserError, match="lipsum"):
            compiled("{{ lipsum() }} ||| t").apply({})

    def test_random_template_is_recognized(self):
        assert weather("numbered at random").is_random
        assert weather("choices at random").is_random
        assert not weather("where").is_random
        assert not compiled("{{ choice }} ||| {{ choice | join }}").is_random  # a column's name
        assert compiled("{{ x | random }} ||| t").is_random

    def test_random_stream_is_made_only_if_needed(self, monkeypatch):
        def forbidden(seed):
            raise AssertionError("made a stream")

        monkeypatch.setattr("random.Random", forbidden)
        weather("dry or wet").example(ROW)


class TestColumns:
    def test_template_columns_of_body_and_choices(self):
        assert weather("choices of the row").columns == {"report", "options", "label"}
        assert weather("choices of text").columns == {"report", "place"}
        assert weather("filters and changed lists").columns == {"options", "place"}

    def test_template_missing_columns(self):
        prompt = compiled("{{a_b}} {{c}} {{answer_choices}} ||| {{d}}", "{{e}}")
        assert prompt.missing_columns(["a-b", "c"]) == ["d", "e"]
        assert prompt.missing_columns(["a_b", "c", "d", "e", "f"]) == []

    def test_template_fixed_answer_choices(self):
        assert weather("dry or wet").fixed_choices == ["dry", "wet"]
        assert weather("where").fixed_choices is None
        assert weather("choices of the row").fixed_choices is None
        assert weather("choices at random").fixed_choices is None
        looped = template("", "{% for i in range(3) %}{{i}}|||{% endfor %}")
        published = dataclasses.replace(looped, published=True)
        assert CompiledTemplate(looped).fixed_choices == [*"012"]
        assert CompiledTemplate(published).fixed_choices == [*"012", ""]
        assert compiled("", "").fixed_choices == [""]


class TestFaults:
    @pytest.mark.parametrize(
        ("jinja", "choices", "words"),
        [
            ("a\n{{ b", None, ["its jinja is not valid Jinja, line 2"]),
            ("{% if a %}", None, ["its jinja", "line 1", "endif"]),
            ("{{ a | no_such_filter }}", None, ["no_such_filter"]),
            ("a", "x ||| {% endfor %}", ["its answer_choices is not valid Jinja, line 1"]),
        ],
    )
    def test_template_syntax_error_message(self, jinja, choices, words):
        for act in (
            lambda prompt: prompt.compile(),
            lambda prompt: prompt.apply({}),
            lambda prompt: prompt.choices({}),
            lambda prompt: prompt.columns,
            lambda prompt: prompt.is_random,
        ):
            with pytest.raises(UserError) as caught:
                act(compiled(jinja, choices))
            message = str(caught.value)
            assert message.startswith("some.yaml:3: template 'the name': ")
            assert "truncate" not in message
            assert "row" not in message
            for word in words:
                assert word in message

    @pytest.mark.parametrize(
        ("jinja", "words"),
        [
            ("{{ 1 // label }}", ["TypeError"]),  # the cut goes to the last operand, as text
            ("{{ nothing.inside }}", ["UndefinedError", "'nothing' is undefined"]),
            ("{{ answer_choices[0].x.y }}", ["UndefinedError"]),
            ("{{ label | join }}", ["TypeError"]),
            ("{{ label | highlight }}", ["TypeError"]),
            ("{{ nothing | choice }}", ["'choice' got an empty sequence"]),
            ("{% if 1 // (label - 1) %}{% endif %}", ["ZeroDivisionError"]),
            ("{% include 'file' %}", ["TypeError"]),
        ],
    )
    def test_template_rendering_error_message(self, jinja, words):
        prompt = compiled(jinja, "{{label}} ||| b")
        with pytest.raises(UserError) as caught:
            prompt.example(ROW, 41)
        message = str(caught.value)
        assert "some.yaml:3: template 'the name' failed on row 41" in message
        assert "columns: report, place, options, label" in message
        for word in words:
            assert word in message

    def test_answer_choices_rendering_error_message(self):
        prompt = compiled("a ||| b", "{{ nothing.inside }}")
        for act in (prompt.choices, prompt.apply, prompt.example):
            with pytest.raises(UserError, match="'the name' failed on row 5.*'nothing'"):
                act(ROW, 5)
        with pytest.raises(UserError, match="answer_choices fail: ZeroDivisionError"):
            _ = compiled("a ||| b", "{{ 1 // 0 }}").fixed_choices

    def test_column_named_answer_choices_is_refused(self):
        row = ROW | {"answer_choices": "a"}
        for act in (weather("where").apply, weather("dry or wet").example):
            with pytest.raises(UserError, match="column 'answer_choices'.*rename"):
                act(row)
        with pytest.raises(UserError, match="column 'answer_choices'"):
            weather("where").example({"answer-choices": "a"})


class TestSandbox:
    @pytest.mark.parametrize(
        "expression",
        [
            "''.__class__",
            "''.__class__.__mro__",
            "''['__class__']['__mro__']",
            "'' | attr('__class__')",
            "'{0.__class__.__mro__}'.format('')",
            "'{a.__class__.__mro__}'.format_map({'a': ''})",
            "range.__init__.__globals__",
            "cycler.__init__.__globals__.os",
            "zip.__self__",
            "self.__init__",
            "answer_choices.__reduce__()",
            "report.split.__globals__",
        ],
    )
    def test_template_sandbox_blocks_the_interpreter(self, expression):
        for prompt in (
            compiled(f"{{{{ {expression} }}}} ||| t"),
            compiled("{{ answer_choices[0] }} ||| t", f"{{{{ {expression} }}}}"),
        ):
            try:
                assert prompt.apply(ROW) == ["", "t"]
            except UserError as error:
                assert "SecurityError" in str(error) or "UndefinedError" in str(error)

    def test_template_sandbox_security_error_is_a_user_error(self):
        with pytest.raises(UserError, match="row 9: SecurityError.*__class__"):
            compiled("{{ ''.__class__.__mro__ }} ||| t").apply(ROW, 9)

    def test_template_sandbox_refuses_long_ranges(self):
        with pytest.raises(UserError, match="OverflowError: Range too big"):
            compiled("{% for i in range(10**9) %}{% endfor %} ||| t").apply(ROW)


@pytest.fixture
def compiled_by(monkeypatch):
    """Lists the environment of each template that Jinja compiles."""
    environments = []
    compiling = jinja2.Environment.compile

    def noted(self, *args, **kwargs):
        environments.append(self)
        return compiling(self, *args, **kwargs)

    monkeypatch.setattr(jinja2.Environment, "compile", noted)
    return environments


class TestCompiling:
    def test_template_compilation_uses_one_environment(self, compiled_by):
        for name in ("where", "dry or wet"):
            prompt = weather(name)
            prompt.example(ROW, 0)
            prompt.choices(ROW, 0)
        assert len(compiled_by) > 2
        assert all(environment is compiled_by[0] for environment in compiled_by)

    def test_template_compiles_only_once(self, compiled_by):
        prompt = weather("choices of the row")
        assert compiled_by == []
        for i in range(5):
            prompt.example(ROW, i)
            prompt.choices(ROW, i)
        assert len(compiled_by) == 2  # the body and the choices

    def test_template_pickle_round_trip(self):
        prompt = weather("numbered at random", "task").compile()
        copy = pickle.loads(pickle.dumps(prompt))
        assert copy.template == prompt.template
        assert copy.example(ROW, 7) == prompt.example(ROW, 7)


class TestLabels:
    """What a label column of the user's own data may hold, where a template looks it up."""

    @pytest.mark.parametrize("label", [1, 1.0, "1", "1.0", " 1", True, Decimal(1)])
    @pytest.mark.parametrize(
        "jinja",
        [
            "a ||| {{answer_choices[label]}}",
            "a ||| {{['dry', 'wet'][label]}}",
            "a ||| {{ {0: 'dry', 1: 'wet'}[label] }}",
            "a ||| {{ {'0': 'dry', '1': 'wet'}[label] }}",
            "a ||| {{options[label]}}",
            "a ||| {% set l = label %}{{answer_choices[l]}}",
            "a ||| {{answer_choices[label | int]}}",
        ],
    )
    def test_label_of_any_whole_number_type_picks_its_choice(self, jinja, label):
        row = {"label": label, "options": ["dry", "wet"]}
        assert compiled(jinja, "dry ||| wet").example(row).targets == "wet"

    @pytest.mark.parametrize("label", [2, 2.0, "2", -2, 0.5, "yes", [1], float("inf")])
    @pytest.mark.parametrize("jinja", ["{{answer_choices[label]}}", "{{['dry', 'wet'][label]}}"])
    def test_label_that_picks_no_choice_is_refused(self, jinja, label):
        with pytest.raises(UserError) as error:
            compiled(f"a ||| {jinja}", "dry ||| wet").example({"label": label}, 7)
        assert f"failed on row 7: column 'label' is {label!r}, which selects none" in str(
            error.value
        )
        assert "(0 is 'dry', 1 is 'wet')" in str(error.value)

    @pytest.mark.parametrize("label", [None, math.nan, ""])
    def test_label_that_is_missing_becomes_no_label(self, label):
        prompt = compiled("a ||| {{answer_choices[label]}}", "dry ||| wet")
        assert prompt.example({"label": label}).targets == NO_LABEL

    def test_label_minus_one_renders_as_in_promptsource(self):
        prompt = compiled("a ||| {{answer_choices[label]}}", "dry ||| wet")
        assert prompt.example({"label": -1}).targets == "wet"
        prompt = compiled("a ||| {{answer_choices[1 - label]}}", "dry ||| wet")
        assert prompt.example({"label": -1}).targets == NO_LABEL
        assert prompt.example({"label": 1.0}).targets == "dry"

    @pytest.mark.parametrize("label", [2, 1.0, "1", 0.5, "yes"])
    def test_label_of_published_template_renders_as_in_promptsource(self, label):
        published = dataclasses.replace(
            template("a ||| {{answer_choices[label]}}", "dry ||| wet"), published=True
        )
        assert CompiledTemplate(published).example({"label": label}).targets == NO_LABEL

    def test_number_columns_print_unchanged(self):
        prompt = compiled(
            "{{score}} {{words[1]}}{{words[5]}} ||| {{answer_choices[score]}}", "a|||b"
        )
        row = {"score": 1.0, "words": ["x", "y"]}
        assert prompt.example(row) == Example("1.0 y", "b", ["a", "b"])

    def test_bytes_column_is_refused_if_the_template_reads_it(self):
        row = {"text": b"\xff\x00", "label": 1}
        with pytest.raises(UserError, match=r"failed on row 3: column 'text' contains bytes"):
            compiled("{{text}} ||| a").apply(row, 3)
        assert compiled("{{label}} ||| a").apply(row, 3) == ["1", "a"]


NESTED_ROW = {
    "words": ["a ||| b", "c"],
    "thing": {"name": "x ||| y", "tags": ["p", "q"]},
    "steps": [{"do": "m ||| n"}, {"do": "o"}],
    "label": 0,
}


@pytest.mark.parametrize(
    ("jinja", "choices", "wanted"),
    [
        ("{{words[0]}} ||| {{thing.name}}", None, ("a ||| b", "x ||| y", None)),
        ("{{words | join('; ')}} ||| t", None, ("a ||| b; c", "t", None)),
        ("{% for s in steps %}{{s.do}}, {% endfor %} ||| t", None, ("m ||| n, o,", "t", None)),
        (
            "q ||| {{answer_choices[label]}}",
            "{{words[0]}} ||| {{thing.name}}",
            ("q", "a ||| b", ["a ||| b", "x ||| y"]),
        ),
    ],
)
def test_template_separator_in_nested_values_is_text(jinja, choices, wanted):
    before = repr(NESTED_ROW)
    assert compiled(jinja, choices).example(NESTED_ROW) == Example(*wanted)
    assert repr(NESTED_ROW) == before


@pytest.mark.parametrize(
    ("jinja", "choices", "wanted"),
    [
        ("{{words}} ||| t", None, True),
        ("{{words[:1]}} ||| t", None, True),
        ("{{thing}} ||| t", None, True),
        ("t ||| {{thing.tags}}", None, True),
        ("{{steps | join(' ')}} ||| t", None, True),
        ("{% for s in steps %}{{s}}{% endfor %} ||| t", None, True),
        ("{{words | string | upper}} ||| t", None, True),
        ("{{answer_choices}} ||| t", "a ||| b", True),
        ("q ||| {{answer_choices[label]}}", "{{thing}} ||| n", True),
        ("{{words | join(' ')}} {{thing.name}} ||| {{thing.tags[0]}}", None, False),
        ("{{steps | join(' ', attribute='do')}} {{words | choice}} ||| t", None, False),
        ("{{words | length}} {{label}} {{absent}} ||| t", None, False),
        ("{{words | tojson}} ||| t", None, False),
        ("{{answer_choices | join}} ||| {{answer_choices[label]}}", "{{words[1]}} ||| b", False),
    ],
)
def test_template_that_prints_lists_or_objects_is_found(jinja, choices, wanted):
    prompt = compiled(jinja, choices)
    assert prompt.prints_nested(NESTED_ROW) is wanted
    assert prompt.prints_nested({"label": 0, "words": "a", "thing": "b", "steps": "c"}) is False


def test_half_surrogate_error_names_the_row():
    for jinja, choices in (
        (r"{{'\ud83d'}} ||| t", None),
        ("{{w}} ||| t", None),
        ("q ||| t", "{{w}}"),
    ):
        with pytest.raises(UserError, match="failed on row 7.*surrogates not allowed") as error:
            compiled(jinja, choices).example({"w": "cut \ud83d"}, 7)
        assert "some.yaml:3" in str(error.value)
        str(error.value).encode()


class SplitRow(dict):
    """A row that knows which columns have no other label than -1 in its split."""

    hides = staticmethod(lambda column: column == "hidden")


@pytest.mark.parametrize(
    ("subscript", "wanted"),
    [
        ("label", "yes"),
        ("negative", None),
        ("hidden", "yes"),  # as in promptsource; the row is not scored
        ("hidden | int", "yes"),
        ("1 - hidden", NO_LABEL),
        ("negative + 1", "no"),
        ("label - 1", "no"),
        ("zero - 1", None),
    ],
)
def test_label_minus_one_in_own_data(subscript, wanted):
    row = SplitRow(label=1, negative=-1, hidden=-1, zero=0, w="x")
    for choices in ("answer_choices", "['no', 'yes']"):
        for change in ("", "{% set _ = words.append(w) %}"):
            prompt = compiled(f"{change}q ||| {{{{{choices}[{subscript}]}}}}", "no ||| yes")
            for one in (row, prepared(row)):
                one["words"] = []
                if wanted is None:
                    with pytest.raises(UserError, match="-1, which selects none of the 2 choices"):
                        prompt.example(one, 3)
                else:
                    assert prompt.example(one, 3).targets == wanted


def test_template_is_compiled_once_for_equal_arguments():
    own = template("{{place}} ||| {{x}}")
    prompt = compile_template(own, "seed")
    assert compile_template(dataclasses.replace(own), "seed") is prompt
    assert pickle.loads(pickle.dumps(prompt)) is prompt
    # Templates that only differ in these fields are equal, but do not print the same.
    published = dataclasses.replace(own, published=True)
    assert published == own
    row = {"place": "Bergen", "x": None}
    assert prompt.example(row).targets == NO_LABEL
    assert compile_template(published, "seed").example(row).targets == "None"
    others = [
        compile_template(own),
        compile_template(dataclasses.replace(own, where="other.yaml:1"), "seed"),
        compile_template(published, "seed", metered=True),
        compile_template(published, "seed"),
    ]
    assert len({id(each) for each in (prompt, *others)}) == 5

import os
import subprocess
import sys

import pytest

from t0.cli import completion, show
from t0.cli import eval as eval_verb
from t0.cli import main as cli
from t0.cli.verb_parser import VerbParser, example_lines
from t0.errors import UserError


@pytest.fixture
def parser():
    return VerbParser("eval", "evaluates a checkpoint", eval_verb)


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "flags.yaml"
        path.write_text(text)
        return path

    return write


def refused(parser, *words):
    with pytest.raises(UserError) as caught:
        parser.parse(words)
    return str(caught.value)


def test_help_ends_with_the_examples_of_the_docstring(parser):
    lines = parser.format_help().rstrip().splitlines()
    examples = example_lines(eval_verb)
    assert examples[0].startswith("t0 eval /models/t0_3b --data_dir=data")
    assert [line.strip() for line in lines[-len(examples) - 1 :]] == ["examples:", *examples]


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_examples(verb, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["help", verb])
    text = capsys.readouterr().out
    assert caught.value.code == 0 and "examples:\n  t0 " in text


def test_help_without_a_verb_lists_the_verbs(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["help"])
    assert caught.value.code == 0 and "export-eval" in capsys.readouterr().out


def test_hyphens_stand_for_underscores_in_names_of_flags(parser):
    args = parser.parse(["x-y", "--data-dir=a-b", "--batch-tokens", "8", "--tasks=--x-y"])
    assert (args.checkpoint, args.data_dir, args.batch_tokens) == ("x-y", ["a-b"], 8)
    assert args.tasks == "--x-y"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x", "--taks=3"], "unknown flag '--taks'. Did you mean --tasks"),
        (["x", "--zzzzzz"], "unknown flag '--zzzzzz'. `t0 eval --help`"),
        (["x", "y"], "unexpected argument 'y'"),
        (["x", "--engine=jax"], "argument --engine: invalid choice: 'jax'"),
        (["x", "--config"], "argument --config: expected one argument"),
        (["x", "--config=nothing.yaml"], "--config names nothing.yaml, which does not exist"),
    ],
)
def test_mistakes_in_flags_are_one_line(parser, words, message):
    text = refused(parser, *words)
    assert text.startswith(message) and "\n" not in text


def test_flags_in_a_config_file_are_those_of_the_command_line(parser, config):
    path = config(
        "data-dir: [one, two]\ntasks: rte.*\nlimit: 7\nreproduce: true\ndownloads: false\n"
    )
    typed = ["--data_dir=one", "--data_dir=two", "--tasks=rte.*", "--limit=7", "--reproduce"]
    for words in (["x", f"--config={path}"], ["--config", str(path), "x"]):
        args = vars(parser.parse(words))
        assert args.pop("config") == str(path)
        assert args | {"config": None} == vars(parser.parse(["x", *typed]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limt: 3", "unknown key 'limt'. Did you mean limit"),
        ("- limit", "expected flags, such as `limit: 100`"),
        ("limit: {a: 1}", "limit is {'a': 1}; expected a number"),
        ("tasks: no", 'tasks is False; expected a number, a list, or a text (quoted: "yes")'),
        ("reproduce: 1", "reproduce is 1; expected true or false"),
        ("config: other.yaml", "unknown key 'config'"),
        ("tasks: [[a]]", "tasks is [['a']]; expected a number"),
        ("tasks: !!python/name:os.system", "flags.yaml"),
        ("limit: -3", "--limit is -3; expected a whole number from 1"),
    ],
)
def test_mistakes_in_a_config_file_are_one_line(parser, config, text, message):
    assert message in refused(parser, "x", f"--config={config(text)}")


def test_flag_in_the_config_file_and_on_the_command_line_is_refused(parser, config):
    path = config("limit: 7\n")
    message = refused(parser, "x", f"--config={path}", "--limit=8")
    assert message == f"--limit is on the command line and in {path}: remove one of them"


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_completion_prints_the_lines_of_a_shell(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    assert "_ARGCOMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "expected"),
    [("t0 ev", {"eval"}), ("t0 show --ro", {"--rows", "--row"}), ("t0 eval --engine ", None)],
)
def test_shell_gets_the_next_words(line, expected, tmp_path):
    answer = tmp_path / "answer"
    environment = os.environ | {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-m", "t0.cli.main"]
    subprocess.run(command, env=environment, check=False, timeout=60, capture_output=True)
    words = {word.strip() for word in answer.read_text().splitlines()}
    assert words == (expected or {"auto", "tensorflow", "torch"})


def test_verb_without_examples_has_a_plain_help():
    class Module:
        __doc__ = "no examples"
        add_arguments = staticmethod(show.add_arguments)

    assert "examples:" not in VerbParser("show", "shows", Module).format_help()


@pytest.mark.parametrize(
    "name", ["cache_dirs", "additional_task_cache_dirs", "tasks-additional-cache-dirs"]
)
def test_cache_folders_have_the_names_of_t0_and_seqio_in_every_verb(parser, config, name):
    assert parser.parse(["m", f"--{name}=/a", "--cache_dirs=/b"]).cache_dirs == "/a,/b"
    path = config("cache_dirs: /c\n")
    assert parser.parse(["m", f"--config={path}"]).cache_dirs == "/c"
    message = f"--cache_dirs is on the command line and in {path}: remove one of them"
    assert refused(parser, "m", f"--{name}=/a", f"--config={path}") == message


def test_config_key_of_an_argument_without_a_name_is_refused(parser, config):
    message = refused(parser, "m", f"--config={config('checkpoint: m')}")
    assert message.endswith(
        "'checkpoint' is not a flag: write it on the command line, without a name"
    )


def test_help_names_the_flag_of_caches_as_t0_published_it(parser):
    assert "  --additional_task_cache_dirs DIR,DIR, --task" in parser.format_help()

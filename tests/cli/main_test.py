import os
import signal
import subprocess
import sys

import pytest

import t0
from t0.cli import main as cli
from t0.errors import UserError, interruptible, reported


class FakeVerb:
    """Stands in for a verb's module."""

    def __init__(self, run):
        self.main = run

    @staticmethod
    def add_arguments(parser):
        parser.add_argument("--name", default="nobody")


@pytest.fixture
def verb(monkeypatch):
    """Installs a verb `greet` that runs the given function."""

    def install(run):
        monkeypatch.setitem(cli.VERBS, "greet", ("t0_fake_verb", "greets somebody"))
        monkeypatch.setitem(sys.modules, "t0_fake_verb", FakeVerb(run))

    return install


def exit_status(words):
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    return caught.value.code


def test_command_gets_its_flags_and_returns_its_exit_status(verb, capsys):
    verb(lambda args: print(f"hello {args.name}") or 3)
    assert cli.main(["greet", "--name", "you"]) == 3
    assert capsys.readouterr().out == "hello you\n"


def test_help_names_every_command(capsys):
    assert exit_status(["--help"]) == 0
    out = capsys.readouterr().out
    for name, (_, about) in cli.VERBS.items():
        assert f"{name} " in out
        assert about in out


@pytest.mark.parametrize("name", cli.VERBS)
def test_help_of_every_command(name, capsys):
    assert exit_status([name, "--help"]) == 0
    assert f"usage: t0 {name}" in capsys.readouterr().out


def test_help_of_a_command_lists_its_flags(verb, capsys):
    verb(None)
    assert exit_status(["greet", "--help"]) == 0
    out = capsys.readouterr().out
    assert "usage: t0 greet" in out
    assert "--name" in out


def test_help_is_printed_without_a_command_and_fails(capsys):
    assert cli.main([]) == 2
    assert "doctor" in capsys.readouterr().out


def test_version_flag_prints_the_version(capsys):
    assert exit_status(["--version"]) == 0
    assert capsys.readouterr().out == f"t0 {t0.__version__}\n"


def test_unknown_command_suggests_the_nearest(capsys):
    assert exit_status(["docter"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("t0: unknown verb 'docter'")
    assert "'doctor'" in err
    assert "tasks" in err


def test_user_error_is_one_message(verb, capsys):
    def run(args):
        raise UserError("no such folder: x. Name another.")

    verb(run)
    assert exit_status(["greet"]) == 2
    assert capsys.readouterr().err == "t0 greet: no such folder: x. Name another.\n"


def test_ctrl_c_message_is_one_line(verb, capsys):
    def run(args):
        raise KeyboardInterrupt

    verb(run)
    assert exit_status(["greet"]) == 130
    assert capsys.readouterr().err.strip() == "t0 greet: interrupted"


@pytest.fixture
def ctrl_c_interrupts():
    """As in a shell's foreground: what a shell begins in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_hidden_by_a_library_error_is_one_line(verb, capsys, ctrl_c_interrupts):
    def run(args):
        with interruptible("all is kept"):
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise RuntimeError("KeyboardInterrupt in a callback") from None

    verb(run)
    assert exit_status(["greet"]) == 130
    assert capsys.readouterr().err.strip() == "t0 greet: interrupted: all is kept"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_internal_error_keeps_its_traceback(verb):
    def run(args):
        raise ZeroDivisionError

    verb(run)
    with pytest.raises(ZeroDivisionError):
        cli.main(["greet"])


def test_exit_status_passes_through_error_reporting():
    with pytest.raises(SystemExit) as caught, reported("x"):
        raise SystemExit(7)
    assert caught.value.code == 7


def test_broken_pipe_prints_no_error():
    code = "from t0.errors import reported\nwith reported('x'):\n  print('y' * 200_000)"
    reader, writer = os.pipe()
    os.close(reader)
    child = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (child.returncode, child.stderr) == (141, b"")


def test_help_does_not_import_tensorflow():
    """In one process: each command takes its turn, and is named if it imports what is heavy."""
    code = (
        "import sys\nfrom t0.cli.main import VERBS, main\n"
        "for words in [], *([name] for name in VERBS):\n"
        "    try: main([*words, '--help'])\n"
        "    except SystemExit: pass\n"
        "    found = {'tensorflow', 'gin', 'seqio'} & set(sys.modules)\n"
        "    assert not found, f'{words} imports {found}'\n"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stdout.count("usage: t0") == 1 + len(cli.VERBS)


@pytest.mark.parametrize(("name", "flag"), cli.REMOVED)
def test_removed_flag_is_refused_with_its_replacement(name, flag, capsys):
    assert exit_status([name, f"{flag}=x"]) == 2
    message = capsys.readouterr().err
    assert f"{flag} was removed: " in message
    assert "t0 " in message.partition("removed: ")[2]

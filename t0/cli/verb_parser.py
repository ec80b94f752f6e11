"""Parses the words of a verb of `t0`: flags on the command line, and flags in a YAML file.

    parser = VerbParser("eval", "evaluates a checkpoint", t0.cli.eval)
    args = parser.parse(["/models/tiny", "--data-dir=data"])      # the same as --data_dir=data
    parser.parse(["/models/tiny", "--taks=x"])    # UserError: unknown flag '--taks'. Did you mean ...
    parser.parse(["/models/tiny", "--config=eval.yaml"])

A config file has one line for each flag, with the flag's name and nothing else:

    data_dir: data
    tasks: super_glue_rte_.*
    limit: 100
    reproduce: true

The parser also has the flags of `module.add_arguments(parser)`, and the command lines in the
module's docstring are the examples of `--help`.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from t0.errors import UserError, nearest
from t0.files.untrusted import read_yaml


class VerbParser(argparse.ArgumentParser):
    """The parser of one verb.

    Args:
      verb: the verb.
      about: the description of the verb, in the third person.
      module: the verb's module.
    """

    def __init__(self, verb: str, about: str, module: ModuleType) -> None:
        examples = [f"  {line}" for line in example_lines(module)]
        super().__init__(
            prog=f"t0 {verb}",
            description=f"{about[0].upper()}{about[1:]}.",
            epilog="\n".join(["examples:", *examples]) if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(self)
        add_config(self)
        self._reworded = getattr(module, "reworded", list)
        # argparse has no public list of its flags, and its help does not show all of them.
        self.flags = [flag for flag in self._option_string_actions if flag.startswith("--")]

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parses the words after the verb.

        Raises:
          UserError: a flag is unknown, missing or malformed, or also in the config file.
          SystemExit: for `--help`.
        """
        words = [self._with_underscores(word) for word in self._reworded(words)]
        args, unknown = self.parse_known_args([*self._config_words(words), *words])
        if unknown and unknown[0].startswith("-"):
            raise self._unknown("flag", unknown[0].partition("=")[0], "--")
        if unknown:
            self.error(f"unexpected argument '{unknown[0]}'")
        return args

    def error(self, message: str) -> NoReturn:
        """Raises argparse's message as a UserError."""
        raise UserError(f"{message}. `{self.prog} --help` shows the flags and examples")

    def _with_underscores(self, word: str) -> str:
        name, equals, value = word.partition("=")
        underscored = f"--{name[2:].replace('-', '_')}"
        is_flag = name.startswith("--") and name not in self.flags and underscored in self.flags
        return f"{underscored}{equals}{value}" if is_flag else word

    def _unknown(self, kind: str, name: str, dashes: str) -> UserError:
        if name in (action.dest for action in self._get_positional_actions()):
            return UserError(
                f"'{name}' is not a flag: write it on the command line, without a name"
            )
        close = nearest(name.lstrip("-"), [flag[2:] for flag in self.flags])
        question = f" Did you mean {' or '.join(dashes + each for each in close)}?" if close else ""
        return UserError(f"unknown {kind} '{name}'.{question} `{self.prog} --help` lists all flags")

    def _config_words(self, words: Sequence[str]) -> Iterator[str]:
        """Yields the words of the flags in the config file, if the command line names one."""
        names = [word.partition("=")[0] for word in words]
        on_command_line = [self._option_string_actions.get(name) for name in names]
        config = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        config.add_argument("--config", type=Path, nargs="?")
        path = config.parse_known_args(words)[0].config
        if path is None:
            return
        if not path.exists():
            raise UserError(f"--config names {path}, which does not exist")
        content = read_yaml(path, count_values=True)
        if not isinstance(content, Mapping):
            raise UserError(f"{path}: expected flags, such as `limit: 100`, one on each line")
        for key, value in content.items():
            flag = self._with_underscores(f"--{key}")
            if flag not in self.flags or flag in ("--config", "--help"):
                raise UserError(f"{path}: {self._unknown('key', str(key), '')}")
            if self._option_string_actions[flag] in on_command_line:
                raise UserError(f"{flag} is on the command line and in {path}: remove one of them")
            yield from self._flag_words(flag, value, path)

    def _flag_words(self, flag: str, value: Any, path: Path) -> Iterator[str]:
        """Yields the words of a flag of the config file `path`; a list repeats its flag."""
        is_switch = self._option_string_actions[flag].nargs == 0
        if isinstance(value, bool) and is_switch:
            yield from [flag] * value
        elif isinstance(value, list) and not any(isinstance(each, list) for each in value):
            for each in value:
                yield from self._flag_words(flag, each, path)
        elif isinstance(value, str | int | float) and not (is_switch or isinstance(value, bool)):
            yield f"{flag}={value}"
        else:
            kind = "true or false" if is_switch else 'a number, a list, or a text (quoted: "yes")'
            raise UserError(f"{path}: {flag[2:]} is {value!r}; expected {kind}")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds the flag --config, which all verbs have."""
    config = "a YAML file with flags, such as `limit: 100`"
    parser.add_argument("--config", metavar="FILE", help=config)


def example_lines(module: ModuleType) -> list[str]:
    """Returns the command lines in a module's docstring, without indentation.

    >>> import t0.cli.merge
    >>> [line.split()[:2] for line in example_lines(t0.cli.merge)]
    [['t0', 'eval'], ['t0', 'merge']]
    """
    lines = (line.strip() for line in (module.__doc__ or "").splitlines())
    return [line for line in lines if line.startswith("t0 ")]

"""What runs the checks elsewhere names what exists: .ci/run, the Dockerfile, GitHub's workflow."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from t0.config import flags
from tests.helpers.programs import loaded

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = (".ci/run", ".ci/image")


def run(*words):
    return subprocess.run([*words], cwd=ROOT, capture_output=True, text=True, check=False)


def sections():
    return run("bash", ".ci/run", "--list").stdout.split()


def steps(workflow):
    """The words of the commands of a workflow, with the values of its matrix put in."""
    for job in yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        [(name, values)] = matrix.items() or [("", [""])]
        for step in job["steps"]:
            for value in values if "run" in step else ():
                yield step["run"].replace("${{ matrix." + name + " }}", value).split()


@pytest.mark.parametrize("script", SCRIPTS)
def test_ci_scripts_parse_and_name_existing_files(script):
    assert run("bash", "-n", script).returncode == 0
    text = (ROOT / script).read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w/$}])((?:tests|docs|\.ci|bin)/[\w./-]*\w)", text))
    assert named and not [path for path in named if not (ROOT / path).exists()]


def test_ci_unknown_section_is_refused_before_anything_runs():
    refused = run("bash", ".ci/run", "styles")
    assert refused.returncode == 2
    assert "no section styles; there are: style docs" in refused.stderr


def test_ci_table_of_sections_has_the_number_of_tests(request):
    config = request.config
    if config.args_source is not config.ArgsSource.TESTPATHS or config.option.keyword:
        pytest.skip("not all tests are collected")
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    written = int(re.search(r"^  \| `tests` \| ([\d,]+) ", text, re.M)[1].replace(",", ""))
    collected = len(request.session.items)
    # Not exactly: a change with a test need not run everything again.
    assert abs(collected - written) <= 0.05 * collected, "run .ci/section_table.py"


def test_ci_table_of_sections_is_written_from_the_output_of_a_run():
    table = loaded(ROOT / ".ci" / "section_table.py")
    output = "\n=== set up\n\n=== set up: ok, 30 s\n\n=== tests\n6,1\n== 1234 passed, 3 skipped in 9.1s\n"
    output += "=== tests: ok, 90 s\n\n=== slow\n=== slow: FAILED (exit status 1) after 2 s\n"
    page = (
        "The table shows the last run, never. X.\n"
        "  | section | tests | minutes | limit |\n  |---|---|---|---|\n  | set up |  | 9.9 | 3 |\n"
        "  | `tests`: all | 1 | 9.9 | 4 |\n  | `slow` | 2 | 9.9 | 7 |\n"
    )
    assert table.updated(page, output, "today") == (
        "The table shows the last run, today. X.\n"
        "  | section | tests | minutes | limit |\n  |---|---|---|---|\n  | set up |  | 0.5 | 3 |\n"
        "  | `tests`: all | 1,234 | 1.5 | 4 |\n  | `slow` | 2 | 9.9 | 7 |\n"
    )


def test_ci_section_that_failed_and_was_run_again_has_the_tests_of_the_second_run():
    table = loaded(ROOT / ".ci" / "section_table.py")
    output = (
        "=== slow\n=== 1 failed, 9 passed in 2s ===\n=== slow: FAILED (exit status 1) after 2 s\n"
    )
    output += (
        "\n=== docs\n=== docs: ok, 6 s\n\n=== slow\n=== 7 passed in 3s ===\n=== slow: ok, 60 s\n"
    )
    assert table.sections(output) == {"docs": (0, 0.1), "slow": (7, 1.0)}


def test_ci_sections_have_their_minutes_in_contributing():
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| section ")[2]
    named = re.findall(r"^ *\| `([\w.-]+)`", table, re.MULTILINE)
    assert named == sections()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_ci_workflows_run_existing_files(workflow):
    for words in steps(workflow):
        assert words[0] in ("bash", "docker", "gh"), words
        if words[0] == "bash":
            assert (ROOT / words[1]).exists(), words
    paths = re.findall(r"^ +(\S+\.lock)$", workflow.read_text(encoding="utf-8"), re.MULTILINE)
    assert paths and all(list(ROOT.glob(path)) for path in paths)


def test_ci_workflow_runs_every_section_once():
    [checks] = [path for path in WORKFLOWS if path.name == "checks.yml"]
    ran = [words[2:] for words in steps(checks) if words[:2] == ["bash", ".ci/run"]]
    assert sorted(sum(ran, [])) == sorted(sections())


@pytest.mark.parametrize(
    ("name", "script", "lock"),
    [
        ("Dockerfile", ".ci/image", "requirements.lock"),
        ("Dockerfile.tpu", "bin/setup", "requirements-3.10.lock"),
    ],
)
def test_docker_image_is_made_by_scripts_of_the_tree(name, script, lock):
    text = (ROOT / name).read_text(encoding="utf-8")
    told = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    [folder] = re.findall(r"^COPY \. (\S+)$", told, re.MULTILINE)
    named = re.findall(rf"{folder}/([\w./-]+)", told)
    assert script in named
    # .venv is what the script makes there.
    assert all((ROOT / path).exists() for path in named if not path.startswith(".venv/"))
    [python] = re.findall(r"^FROM python:(3\.\d+)-", told, re.MULTILINE)
    assert (ROOT / lock).read_text().partition("Python ")[2].startswith(python)


def test_docker_image_of_workers_has_the_beam_of_the_lock():
    text = (ROOT / "Dockerfile.worker").read_text(encoding="utf-8")
    [(python, version)] = re.findall(r"beam_python(3\.\d+)_sdk:(\S+)", text)
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert f"\napache-beam=={version} " in lock
    assert lock.partition("Python ")[2].startswith(python)


def test_gke_job_is_a_command_that_the_parser_accepts():
    job = yaml.safe_load((ROOT / "docs" / "gke_job.yaml").read_text(encoding="utf-8"))
    [container] = job["spec"]["template"]["spec"]["containers"]
    command, *words = container["command"]
    assert command == "t5_mesh_transformer"
    flag_values = flags.parse([command, *words])
    assert flag_values["finetune_steps"].value == 1000
    assert all((ROOT / "gin" / path).is_file() for path in flag_values["gin_file"].value)


def test_docker_image_includes_all_tracked_files():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is not a clone")
    out = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    patterns = [
        re.compile(re.escape(name.removeprefix("**/")).replace(r"\*", "[^/]*")) for name in out
    ]
    lost = [
        path
        for path in listed.stdout.split("\n")
        if any(p.fullmatch(part) for p in patterns for part in Path(path).parts)
    ]
    assert not lost

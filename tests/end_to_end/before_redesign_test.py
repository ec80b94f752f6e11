"""What was written by this project's first layout is read by today's: a run, a cache, gin files.

`tests/fixtures/before_redesign/README.md` says how they came to be.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

BEFORE = Path(__file__).resolve().parents[1] / "fixtures" / "before_redesign"
OPERATIVE = sorted(BEFORE.glob("operative/*.gin"))


@pytest.fixture(scope="module")
def gone_on(server, tmp_path_factory):
    """Trains six more steps in a copy of the model directory; what it printed, and the copy."""
    folder = tmp_path_factory.mktemp("before") / "before_redesign"
    shutil.copytree(BEFORE, folder)
    words = json.loads((BEFORE / "words.json").read_text())
    words = [word.replace("$BASE", str(folder)) for word in words]
    done = server.run(
        *(f"--model_dir={folder}/model", *words, "--gin_param=run.train_steps = 12"),
        environment={"T0_DATA_DIR": folder / "data", "T0_VOCAB": folder / "vocab.model"},
    )
    assert done.status == 0, done.err
    return done, folder


def test_resume_of_old_run_keeps_its_configuration(gone_on):
    done, folder = gone_on
    assert "training from step 6 to 12" in done.out
    assert f"{folder}/model/model.ckpt-6, step 6" in done.out
    assert "optimizer state: restored" in done.out
    # Another configuration would be an error, or with --allow_config_change a note.
    said, others = done.err.splitlines(), ("data: ", "WARNING: weather_")
    device, of_cache = [line for line in said if not line.startswith(others)]
    assert of_cache.startswith("2 of 2 caches") and "an older version or SeqIO wrote" in of_cache
    assert device == "no --tpu: running on one device"
    before = json.loads((BEFORE / "model" / "configuration.json").read_text())
    now = json.loads((folder / "model" / "configuration.json").read_text())
    added = {f"choice_losses.{n}": "0.0" for n in ("likelihood", "unlikelihood")}
    added |= {"choice_losses.length_normalized": "0.0", "train_loop.loss_average": "'positions'"}
    assert now == before | added
    # Once one file, the operative config is two: stock T5's names, and this project's.
    operative = (BEFORE / "model" / "operative_config.gin").read_text()
    now = [folder / "model" / f"operative_config{part}.gin" for part in ("", ".t0")]
    found = bindings(now[0].read_text()) | bindings(now[1].read_text())
    added |= {"run.train_steps": "12", "train_loop.validation_mixture": "None"}
    added |= {"train_loop.report_to": "None"}
    assert found == bindings(operative) | added


def test_resume_of_old_run_continues_in_the_new_order_and_says_so(gone_on):
    done, folder = gone_on
    assert "an earlier version, which drew the examples in another order" in done.out
    lines = (folder / "model" / "metrics.jsonl").read_text().splitlines()
    losses = {record["step"]: record["loss"] for record in map(json.loads, lines)}
    straight = json.loads((BEFORE / "losses.json").read_text())  # of twelve steps without a stop
    assert losses.keys() == set(map(int, straight))
    first = range(1, 7)  # written by the old version; later batches have other examples
    assert [losses[n] for n in first] == [pytest.approx(straight[str(n)], rel=1e-5) for n in first]
    assert all(losses[n] == pytest.approx(straight[str(n)], rel=0.2) for n in range(7, 13))


def bindings(text):
    """The bindings of an operative config, {name: value without blanks}; those of macros, too."""
    found = {}
    for line in text.replace("\\\n", "").splitlines():
        name, mark, value = line.partition(" = ")
        if mark and re.fullmatch(r"[\w./]+", name):
            found[name] = value
        elif line.startswith((" ", "]", "}", ")")):
            found[list(found)[-1]] += line
    plain = {name: re.sub(r"\s", "", value) for name, value in found.items()}
    # The listing says what a macro comes to, and a macro of a macro.
    once = {name: re.sub(r"%(\w+)", lambda m: plain[m[1]], text) for name, text in plain.items()}
    return {name: re.sub(r"%(\w+)", lambda m: plain[m[1]], text) for name, text in once.items()}


@pytest.mark.parametrize("path", OPERATIVE, ids=[path.stem for path in OPERATIVE])
def test_old_operative_gin_file_is_read_whole(path, command):
    saved = bindings(path.read_text())
    assert len(saved) > 90
    recipes = ["--module_import=t0.recipes"] if path.stem.startswith("run_file") else []
    done = command(f"--gin_file={path}", "--dry_run", *recipes, tasks=False)
    assert done.status == 0, done.err
    notes = [x for x in done.err.splitlines() if not x.startswith("gin: nothing reads the macro")]
    assert notes == ["dry run: nothing is written or trained"]
    listed = re.findall(rf"^(\S+) = (.*)  # {re.escape(str(path))}:\d+", done.out, re.M)
    found = {name: re.sub(r"\s", "", value) for name, value in listed}
    # Without --tpu this machine has its own mesh and types; what looks like a secret is masked.
    other = set(re.findall(r"^(\S+) = (?:.*  # this machine.*|\*\*\*)$", done.out, re.M))
    assert found == {name: value for name, value in saved.items() if name not in other}


def test_old_operative_gin_files_cover_every_mode():
    ours = {"train", "eval", "perplexity_eval", "score_eval", "infer"}
    ours |= {"score_from_dataset", "score_from_strings", "export", "export_infer", "export_score"}
    ours |= {"run_file_pretrain", "run_file_eval", "run_file_infer"}
    api = ("train", "finetune", "eval", "predict", "score", "export_predict", "export_score")
    assert {path.stem for path in OPERATIVE} == ours | {f"model_api_{mode}" for mode in api}

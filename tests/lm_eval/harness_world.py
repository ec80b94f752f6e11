"""A small world for lm-evaluation-harness: two datasets with prompts, a vocabulary, a tiny T5.

    python -m tests.lm_eval.harness_world FOLDER      # records tests/fixtures/lm_eval anew

Recording needs lm_eval and PyTorch, as `.ci/run transformers` installs them.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from t0.checkpoints import tokenizer
from t0.testing import train_vocabulary, write_dataset

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "lm_eval"
TASKS = "(weather|film)_.*_score_eval"
WEATHER = ("rain", "snow", "wind", "heat")
PROMPTS = {
    "which word": (
        "Report: {{report}}.\nWhich weather? ||| {{ answer_choices[label] }}",
        "rain ||| snow ||| wind ||| heat",
    ),
    # Choices of each row; a row may lack the right one.
    "own choices": (
        "{{report}}. Choose: {{ options | join(', ') }} ||| {{ right }}",
        "{{ options | join('|||') }}",
    ),
    "only rain": (
        "{% if label < 2 %}Rain? {{report}} ||| {{ ['yes', 'no'][label] }}{% endif %}",
        "yes ||| no",
    ),
    "retell": ("Retell: {{report}} ||| {{report}}", None),
}
FILM = {"good or bad": ("{{text}} Good or bad? ||| {{answer_choices[label]}}", "bad ||| good")}


def weather_rows(count):
    for number in range(count):
        label = number * 3 % 4
        options = [WEATHER[(label + step) % 4] for step in range(2 + number % 2)]
        if number == 3:
            options[0] = "fog"
        yield {
            "report": f"{'early ' * (number % 3)}much {WEATHER[label]} by night, and then café",
            "label": label,
            "options": options[::-1] if number % 2 else options,
            "right": WEATHER[label],
        }


def film_rows(count):
    for number in range(count):
        # The label of the third is withheld.
        yield {"text": f"a {'fine' if number % 2 else 'dull'} film {number}", "label": number % 2}
    yield {"text": "a film", "label": None}


def lay_out(folder):
    """Writes data/ and vocab.model into a folder."""
    data = folder / "data"
    write_dataset(data / "weather", PROMPTS, {"validation": weather_rows(6)})
    write_dataset(data / "film", FILM, {"validation": film_rows(4)})
    text = [f"{row['report']}. Which weather? Choose: yes no" for row in weather_rows(40)]
    text += [f"{row['text']} Good or bad? good bad fog" for row in film_rows(40)]
    train_vocabulary(folder / "vocab.model", text, size=120)
    return folder


def make_model(folder, vocabulary):
    """Writes a random T5 as a Hugging Face folder: of 1.0, whose output matrix is the embedding.

    Of a T5 1.1 the harness with transformers 5 would score another model.
    """
    import torch
    import transformers

    torch.manual_seed(3)
    settings = transformers.T5Config(
        vocab_size=256,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(settings).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "layer_norm" not in name:
                values.normal_(0, 2.0 if "shared" in name else 0.2)
    model.save_pretrained(folder)
    tokenizer.write_hf(folder, vocabulary)
    return folder


def python(folder, *words, **given):
    """Runs Python in a folder, without the network; ends with its errors."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment | given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def t0(folder, *words):
    return python(folder, "-m", "t0.cli.main", *words)


def export(folder, *words):
    return t0(folder, "export-eval", TASKS, "--to=lm-eval", "--data_dir=data", *words)


def lm_eval(folder, *words, inputs_eos=False):
    """Runs the exported tasks in the folder `exported` on the folder `model`."""
    arguments = "pretrained=model,dtype=float32,max_length=1024"
    arguments += "" if inputs_eos else ",add_bos_token=False"
    run = ["-m", "lm_eval", "run", "--model=hf", f"--model_args={arguments}", "--device=cpu"]
    run += ["--batch_size=4", "--include_path=exported", "--log_samples", "--output_path=theirs"]
    return python(folder, *run, *words)


def evaluate(folder, *words):
    return t0(
        folder, "eval", "model", f"--tasks={TASKS}", "--data_dir=data", "--output=ours", *words
    )


def main(folder):
    folder.mkdir(parents=True)
    lay_out(folder)
    make_model(folder / "model", folder / "vocab.model")
    export(folder, "--output=exported")
    print(lm_eval(folder, "--tasks=t0_prompts"))
    evaluate(folder)
    shutil.rmtree(FIXTURE, ignore_errors=True)
    (FIXTURE / "theirs").mkdir(parents=True)
    for path in (folder / "theirs" / "model").iterdir():
        name = path.name
        if path.suffix == ".json":
            content = json.loads(path.read_text())
            del content["pretty_env_info"]  # of the machine
            (FIXTURE / "theirs" / name).write_text(
                json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            )
        else:
            shutil.copy(path, FIXTURE / "theirs" / name)
    shutil.copytree(folder / "ours" / "scores", FIXTURE / "ours" / "scores")
    ours = (folder / "ours" / "results_0.json").read_text()
    (FIXTURE / "ours" / "results_0.json").write_text(ours.replace(f"{folder}/", ""))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

"""Makes up evaluations on disk: results files with per-example scores beside them."""

import hashlib
import json

import numpy as np


def example_line(idx, likelihoods, gold, *, texts=None, prediction=None, **fields):
    texts = texts or [f"choice {i}" for i in range(len(likelihoods))]
    return {
        "idx": idx,
        "choices": [
            {"text": text, "log_likelihood": value, "tokens": 2}
            for text, value in zip(texts, likelihoods, strict=True)
        ],
        "gold": gold,
        "prediction": int(np.argmax(likelihoods)) if prediction is None else prediction,
        **fields,
    }


def accuracy_of(lines):
    scored = [line for line in lines if line["gold"] not in (None, -1)]
    return 100.0 * sum(line["gold"] == line["prediction"] for line in scored) / len(scored)


def change(path, edit):
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return path


class Evaluation:
    """Collects tasks, then writes results_<step>.json and scores/."""

    def __init__(self, folder, step=100, **run):
        self.folder, self.step = folder, step
        self.run = {"step": step, "model_dir": f"models/{folder.parent.name}", **run}
        self.tasks = {}

    def add(self, name, dataset, prompt, lines, *, with_scores=True, **fields):
        self.tasks[name] = {
            "dataset": dataset,
            "prompt": prompt,
            "examples": len(lines),
            "metrics": {"accuracy": accuracy_of(lines)},
            "truncated_inputs": 0,
            "excluded": {},
            **fields,
        }
        if with_scores:
            (self.folder / "scores").mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (self.folder / "scores" / f"{name}_{self.step}.jsonl").write_text(text)
        return self

    def write(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"results_{self.step}.json"
        path.write_text(json.dumps({"schema": 1, "run": self.run, "tasks": self.tasks}))
        return path


def random_lines(count, choices, seed, skill=0.5, **fields):
    """Scores of a model that knows a little: the gold choice gets `skill` nats more."""
    rng = np.random.default_rng(seed)
    lines = []
    for idx in range(count):
        number = int(rng.choice(choices))
        gold = int(rng.integers(number))
        likelihoods = rng.normal(-5, 1, number)
        likelihoods[gold] += skill
        lines.append(example_line(idx, likelihoods.tolist(), gold, **fields))
    return lines


def two_models(folder):
    """Two models on three datasets: held-out RTE and COPA, a training set of ragged choices."""
    sets = [
        ("rte", "super_glue/rte", "prompt", 4, 40, [2], "held-out"),
        ("copa", "super_glue/copa", "copa", 3, 25, [2], "held-out"),
        ("hop", "dream/hop", "hop", 2, 30, [2, 3, 5], "training"),
    ]
    paths = []
    for model, skill in (("first", 0.3), ("second", 1.5)):
        made = Evaluation(folder / model / "eval")
        for number, (name, dataset, prompt, prompts, examples, choices, group) in enumerate(sets):
            for p in range(prompts):
                lines = random_lines(examples, choices, seed=10 * number + p, skill=skill)
                task = f"{name}_{p}_score_eval"
                made.add(task, dataset, f"{prompt} {p}", lines, group=group)
        paths.append(made.write())
    return paths


def write_metrics(path):
    """Writes what a training run logged: its loss falls, the rest is constant."""
    path.parent.mkdir(exist_ok=True)
    records = [
        {"step": s, "loss": 9 - s / 100, "learning_rate": 0.001, "tokens_per_second": 5e3}
        for s in range(1, 400)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


class Decoded:
    """Collects tasks of mode `eval`, then writes decoded_<step>.json and predictions/."""

    def __init__(self, folder, step=100, **run):
        self.folder, self.step = folder, step
        model = f"models/{folder.parent.name}"
        self.run = {"step": step, "model_dir": model, "mode": "eval", "split": "test", **run}
        self.tasks = {}

    def add(self, name, metrics, predictions, *, ending="jsonl", **fields):
        """`predictions` are the lines of a `.jsonl` file, or what a `.json` file holds."""
        place = f"predictions/{name}_{self.step}.{ending}"
        listed = predictions if ending == "jsonl" else [predictions]
        (self.folder / "predictions").mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in listed)
        (self.folder / place).write_text(text)
        self.tasks[name] = {
            "metrics": metrics,
            "signatures": {},
            "examples": len(listed),
            "truncated_inputs": 0,
            "truncated_targets": 0,
            "predictions": place,
            **fields,
        }
        return self

    def write(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"decoded_{self.step}.json"
        path.write_text(json.dumps({"schema": 1, "run": self.run, "tasks": self.tasks}))
        return path


SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def recipes_decoded(folder, step, skill, **run):
    """An evaluation of the three recipes and a task of one's own, of a model that learns."""
    words = ["rain", "snow", "wind", "heat"]
    translations = [
        {
            "inputs": f"translate English to German: It is {word} in row {i}.",
            "prediction": f"Es ist {word} {i}." if i % 3 else "",
            "targets": f"Es ist {word} {i}.",
        }
        for i, word in enumerate(words * 6)
    ]
    instructions = [
        {
            "Task": f"task{1300 + i % 4}_rte_weather",
            "Definition": ["Say which weather the report tells of."],
            "Categories": ["Textual Entailment"],
            "Instance": {"id": f"task{1300 + i % 4}-{i}", "input": f"Report {i}.", "output": words},
            "prediction": words[i % 4],
        }
        for i in range(20)
    ]
    questions = {
        "metrics": {"em": 30 * skill, "f1": 40 * skill},
        "predictions": {"q1": "in Oslo", "q2": ""},
        "examples": [
            {
                "id": "q1", "question": "Where does it rain?", "context": "In Oslo it rains.",
                "answers": ["Oslo", "in Oslo"], "prediction": "in Oslo", "em": 100.0, "f1": 100.0,
            },
            {
                "id": "q2", "question": "Who rains?", "context": "Nobody.", "answers": [],
                "prediction": "", "em": 100.0, "f1": 100.0,
            },
        ],
    }  # fmt: skip
    groups = [
        "textual_entailment",
        "data_to_text",
        *(f"task{1300 + i}_rte_weather" for i in (0, 1)),
    ]
    metrics = {"exact_match": 20 * skill, "rougeL": 31 * skill}
    for number, group in enumerate(groups):
        metrics[f"exact_match_for_{group}"] = 20 * skill - number
        metrics[f"rougeL_for_{group}"] = 31 * skill + number
    return (
        Decoded(folder, step, **run)
        .add("sni_def_pos_2", metrics, instructions, truncated_inputs=3)
        .add("qa_squad", questions["metrics"], questions, ending="json", examples=10570)
        .add(
            "mt_en_de",
            {"bleu": 21.5 * skill},
            translations,
            signatures={"bleu": SIGNATURE},
            truncated_targets=4,
        )
        .add("my_task", {"accuracy": 25.0 * skill, "edit_distance": 3.25}, [])
    )


def write_overlap(folder, rows, *, prompts, examples=200, split="validation", **run):
    """Writes a result of `t0 overlap` with overlapping `idx` by prompt."""
    folder.mkdir(parents=True)
    lines = [
        {
            "row": idx,
            "prompts": {
                f"super_glue_rte_{prompt}": {"idx": idx, "overlaps": {"13": idx in some, "8": True}}
                for prompt, some in rows.items()
            },
        }
        for idx in range(examples)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (folder / "rows.jsonl").write_bytes(content)
    prompts = {f"super_glue_rte_{prompt}": {"texts": examples} for prompt in prompts}
    facts = {
        "schema": 1,
        "kind": "overlap",
        "run": {"ngrams": [13, 8], "train": ["books"], "eval_split": split, **run},
        "datasets": {"super_glue/rte": {"prompts": prompts}},
        "rows": {"file": "rows.jsonl", "sha256": hashlib.sha256(content).hexdigest()},
    }
    (folder / "overlap.json").write_text(json.dumps(facts))
    return folder

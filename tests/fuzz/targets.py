"""What is fuzzed: each target makes whole files once, and reads damaged copies of them.

A target ends normally, with the right answer, or with a `UserError`. Anything else is a finding.
"""

import contextlib
import importlib.util
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from t0.config.specification import InstructionSpec, RunSpec
from t0.errors import UserError
from t0.feeding.reading import ExampleBlock
from tests.fuzz.mutators import changed_json, damaged, damaged_folder, jinja
from tests.fuzz.tiny_run import tiny_run

ROWS = [
    {"text": f"row {n} a b", "label": n % 2, "words": ["x", "y"], "deep": {"k": [1.5, None]}}
    for n in range(5)
]
_YAML = """dataset: mine
templates:
  a: !Template
    name: good
    jinja: '{{text}} ||| {{answer_choices[label]}}'
    answer_choices: no ||| yes
    metadata: !TemplateMetadata {original_task: true, metrics: [Accuracy]}
"""
_MIXTURES = """one: {tasks: ["mine_.*", "(a|b)+c"], rate: 2.5}
two: {tasks: [x, {task: "mine.*", exclude: "y", cap: 3}, {mixture: one, rate: 2}], temperature: 2}
"""
_GIN = "import gin\nMACRO = 'x'\nrun.train_steps = 5\na/b.c = @d()\nx.y = [1, (2, {'k': %MACRO})]\n"


def _template(jinja_text: str, choices: str | None) -> object:
    from t0.prompts import CompiledTemplate, Template

    one = Template("mine", jinja_text, choices, "", False, False, (), "id", where="t.yaml:1")
    return CompiledTemplate(one, "seed")


def templates(folder: Path) -> Callable[[st.DataObject], None]:
    def run(data: st.DataObject) -> None:
        prompt = _template(data.draw(jinja), data.draw(st.none() | jinja))
        for index, row in enumerate(ROWS[:2]):
            before = json.dumps(row)
            try:
                prompt.example(row, index)
            finally:
                assert json.dumps(row) == before, "the row was changed"

    return run


def _rows(name: str, write: Callable[[Path], object]) -> Callable[[Path], Callable]:
    def target(folder: Path) -> Callable[[st.DataObject], None]:
        (folder / "whole").mkdir()
        write(folder / "whole" / name)

        def run(data: st.DataObject) -> None:
            from t0.sources.folders import folder_splits
            from t0.sources.readers import reader_for

            copy = data.draw(damaged_folder(folder / "whole", folder / "copy"))
            for found in folder_splits(copy).values():
                reader = reader_for(found.kind, (found.path,))
                columns, count = reader.columns(), reader.count()
                rows = list(reader.rows(0, None))
                assert len(rows) <= count, (len(rows), count)
                assert all(set(row) == set(columns) for row in rows)

        return run

    return target


def _jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def _csv(path: Path) -> None:
    path.write_text('text,label\n"a ""b"", c",1\nplain,0\nlong text,1.0\n')


def _parquet(path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(ROWS), path)


def _arrow(path: Path) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def own_folders(folder: Path) -> Callable[[st.DataObject], None]:
    dataset = folder / "whole" / "mine"
    dataset.mkdir(parents=True)
    (dataset / "templates.yaml").write_text(_YAML)
    (folder / "whole" / "mixtures.yaml").write_text(_MIXTURES)
    _jsonl(dataset / "train.jsonl")

    def run(data: st.DataObject) -> None:
        from t0.catalogue.mixture_members import resolve_mixtures
        from t0.sources import find_own_datasets, find_own_mixtures

        copy = data.draw(damaged_folder(folder / "whole", folder / "copy"))
        for found in find_own_datasets([copy]):
            for template in found.template_file.templates:
                _template(template.jinja, template.answer_choices).example(ROWS[0])
        resolve_mixtures(find_own_mixtures([copy]), ["mine_good", "x", "ab" * 20], {"t0": []})

    return run


def caches(folder: Path) -> Callable[[st.DataObject], None]:
    from t0.caching import cache_files
    from t0.files import tf_examples, tfrecord

    whole = folder / "whole"
    whole.mkdir()
    records = [
        tf_examples.example(tf_examples.ints_entry("inputs", [n, 300 * n, 7])) for n in range(9)
    ]
    shard = "train.tfrecord-00000-of-00001"
    contents = {
        shard: b"".join(map(tfrecord.framed, records)),
        "info.train.json": b'{"num_shards": 1}',
        "stats.train.json": b'{"examples": 9}',
    }
    files = {}
    for name, content in contents.items():
        files[name] = {"sha256": cache_files.hashlib.sha256(content).hexdigest()}
        files[name]["bytes"] = len(content)
        (whole / name).write_bytes(content)
    manifest = {"schema": 1, "task": "whole", "absent_splits": {}, "splits": {"train": {}}}
    manifest["splits"]["train"] = {"examples": 9, "files": files}
    (whole / "COMPLETED").write_bytes(cache_files.with_checksum(manifest))

    def run(data: st.DataObject) -> None:
        from t0.caching.verify import has_checksums, verify_cache
        from t0.feeding.token_files import read_ids

        copy = data.draw(damaged_folder(whole, folder / "copy"))
        same = {p.name: p.is_file() and p.read_bytes() for p in copy.iterdir()} == {
            p.name: p.read_bytes() for p in whole.iterdir()
        }
        faults = list(verify_cache(str(copy)))
        assert same or faults or not has_checksums(str(copy)), "damage was not found"
        assert not (same and faults), faults
        if (copy / shard).is_file():
            read_ids([str(copy / shard)], ["inputs"])

    return run


def _checkpoints(kind: str) -> Callable[[Path], Callable]:
    def target(folder: Path) -> Callable[[st.DataObject], None]:
        from t0.checkpoints import convert
        from tests.checkpoints.tiny_checkpoints import V11, weights, write_mtf

        whole = write_mtf(folder / "mtf", weights(V11))
        whole = whole if Path(whole).is_dir() else folder / "mtf"
        if kind == "hf":
            convert(folder / "mtf", folder / "hf", to="hf")
            whole = folder / "hf"
        if kind == "t5x":
            fixture = Path(__file__).parents[1] / "fixtures" / "t5x_checkpoint.tar.gz"
            with tarfile.open(fixture) as archive:
                archive.extractall(folder / "t5x", filter="data")
            whole = folder / "t5x"
        number = 0

        def run(data: st.DataObject) -> None:
            nonlocal number
            number += 1
            copy = data.draw(damaged_folder(Path(whole), folder / "copy"))
            out = folder / "out" / str(number)
            convert(copy, out, to="hf" if kind == "mtf" else "mtf")

        return run

    return target


def results(folder: Path) -> Callable[[st.DataObject], None]:
    run_facts = {"model_dir": "/m", "step": 5, "split": "validation"}
    one = {"dataset": "d", "prompt": "p", "examples": 4, "metrics": {"accuracy": 50.0}}
    whole = {"schema": 1, "run": run_facts, "tasks": {"t": {**one, "truncated_inputs": 0}}}
    content = json.dumps(whole).encode()
    path = folder / "results_5.json"

    def run(data: st.DataObject) -> None:
        from t0.reports import read_report

        path.write_bytes(data.draw(damaged(content)))
        report = read_report([path])
        report.lines()
        report.data()

    return run


def gin_text(folder: Path) -> Callable[[st.DataObject], None]:
    """The text beside a checkpoint, of which nothing is imported."""

    def run(data: st.DataObject) -> None:
        from t0.checkpoints import operative_config

        text = data.draw(damaged(_GIN.encode())).decode("utf-8", "replace")
        path = folder / "some.gin"
        path.write_text(text)
        operative_config.plain_bindings(str(path))

    return run


def protobuf(folder: Path) -> Callable[[st.DataObject], None]:
    """Records that are whole, of other layouts than the usual."""
    from t0.files import tf_examples

    content = tf_examples.example(tf_examples.ints_entry("inputs", [1, 300, 2**40]))

    def run(data: st.DataObject) -> None:
        from t0.feeding.token_files import ids_of

        try:
            found = ids_of([data.draw(damaged(content)) for _ in range(3)], ["inputs"])
        except ValueError as error:  # named with its file where it is read
            raise UserError(str(error)) from error
        assert len(found["inputs"].ends) == 4
        assert found["inputs"].values.dtype == np.int32

    return run


def cached_instructions(folder: Path) -> Callable[[st.DataObject], None]:
    """Whole records whose parts may not be those of an instruction."""
    from t0.files import tf_examples, tfrecord

    numbers = {
        "inputs": [5, 6, 7, 8, 9],
        "part_tokens": [0, 2, 1, 0, 2],
        "part_bytes": [0, 2, 1, 0, 2],
        "outputs": [8, 9, 9],
        "output_tokens": [1, 2],
    }
    path = folder / "train.tfrecord-00000-of-00001"
    # Negative numbers are those from 2**63 on.
    integers = st.lists(st.integers(0, 9) | st.integers(0, 2**64 - 1), max_size=6)
    spec = InstructionSpec(1, 5, {"inputs": 1, "targets": 1})

    def run(data: st.DataObject) -> None:
        from t0.feeding.cached_examples import INSTRUCTION_FEATURES, InstructedSource
        from t0.inference.cached_inputs import open_cache

        entries = {**numbers, **data.draw(st.dictionaries(st.sampled_from([*numbers]), integers))}
        content = b"".join(tf_examples.ints_entry(*entry) for entry in entries.items())
        content += tf_examples.bytes_entry("inputs_pretokenized", [b"a bc "])
        content = data.draw(st.just(content) | damaged(content))
        path.write_bytes(tfrecord.framed(tf_examples.example(content)))
        lengths = {"inputs": 5, "targets": 2}
        source = InstructedSource(
            "one", (str(path),), 1, INSTRUCTION_FEATURES, spec=spec, lengths=lengths
        )
        vocabularies = (Numbers(), Numbers())
        for read in (
            lambda: source.blocks(epoch=0, first=0, seed=1),
            lambda: open_cache(
                "one", "train", [str(path)], total=1, vocabularies=vocabularies, spec=spec
            ).read(0, 1),
        ):
            for found in read():
                assert (
                    len(found[0]["inputs"] if isinstance(found, ExampleBlock) else found.tokens)
                    <= 6
                )

    return run


def specifications(folder: Path) -> Callable[[st.DataObject], None]:
    """Run specifications, which PyTorch trains if it is installed."""
    whole = tiny_run(folder)
    (folder / "vocabulary.model").touch()
    has_torch = importlib.util.find_spec("torch") is not None

    def run(data: st.DataObject) -> None:
        from t0.config.specification import RunSpec, from_json

        changed = data.draw(changed_json(whole))
        if isinstance(changed, dict) and "model_dir" in changed:
            changed["model_dir"] = whole["model_dir"]
        shutil.rmtree(folder / "model", ignore_errors=True)
        spec = from_json(json.dumps(changed), RunSpec)
        (_train if has_torch else _read_data)(spec)

    return run


def _train(spec: RunSpec) -> None:
    from t0.torch import processes, torch_session

    with contextlib.redirect_stdout(io.StringIO()), processes.join_processes("cpu") as joined:
        torch_session.train(spec, joined, torch_session.ComputeOptions())


def _read_data(spec: RunSpec) -> None:
    from t0.feeding.training_data import open_training_data

    if spec.data:
        next(open_training_data(spec.data).batches(2))


def resume_states(folder: Path) -> Callable[[st.DataObject], None]:
    """The record of a checkpoint of the PyTorch engine, damaged or with other values."""
    from t0.checkpoints import torch_shards
    from t0.config.specification import RunSpec, from_json
    from t0.feeding.training_data import open_training_data
    from t0.training import resume_file

    spec = from_json(json.dumps(tiny_run(folder)), RunSpec).data
    _, position = next(open_training_data(spec).batches(2))
    checkpoint = folder / "torch.ckpt-1"
    checkpoint.mkdir()
    (checkpoint / "rows").write_bytes(b"rows")
    record = {"step": 1, "began": 0, "seed": 0, "position": position, "own": [0, 1]}
    record |= {"seconds": 1.5, "evaluated": True, "files": {"rows": 4}}
    record["judge"] = {"metric": "validation_loss", "value": 2.5, "step": 1, "since": 0}
    sums = {"rows": torch_shards.file_checksum(checkpoint / "rows")}
    text = torch_shards.record_text(record, sums)

    def run(data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(["bytes", "values", "old values"]))
        content = data.draw(damaged(text.encode())) if kind == "bytes" else b""
        if kind != "bytes":
            changed = data.draw(changed_json(record))
            if kind == "values" and isinstance(changed, dict):
                content = torch_shards.record_text(changed, sums).encode()
            else:
                old = {"schema": 1, **changed} if isinstance(changed, dict) else changed
                content = json.dumps(old).encode()
        (checkpoint / torch_shards.RECORD).write_bytes(content)
        found = torch_shards.read_record(checkpoint)
        torch_shards.check_checksums(checkpoint, found)
        try:
            resume_file.check_record(found)
            opened = open_training_data(spec)
            position = opened.read_position(found["position"])
        except (ValueError, LookupError, TypeError) as error:  # the engines name the checkpoint
            raise UserError(str(error)) from error
        next(opened.batches(2, position))

    return run


class Numbers:
    """A vocabulary whose words are numbers."""

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


TARGETS: dict[str, Callable[[Path], Callable[[st.DataObject], None]]] = {
    "templates": templates,
    "jsonl": _rows("train.jsonl", _jsonl),
    "csv": _rows("train.csv", _csv),
    "parquet": _rows("train.parquet", _parquet),
    "arrow": _rows("train.arrow", _arrow),
    "own folders": own_folders,
    "caches": caches,
    "records": protobuf,
    "instructions": cached_instructions,
    "safetensors": _checkpoints("hf"),
    "mesh bundles": _checkpoints("mtf"),
    "t5x": _checkpoints("t5x"),
    "results": results,
    "gin": gin_text,
    "specifications": specifications,
    "resume states": resume_states,
}

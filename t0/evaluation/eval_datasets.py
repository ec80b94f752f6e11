"""Selects the tasks and examples of an evaluation, and finds the dataset rows of the examples.

    tasks = configured_tasks()
    read = select_examples(mesh_eval_dataset_fn)    # a dataset function, limited by the settings
    describe_rows(configured_rows("qa"), None)      # [{"idx": 0, "id": "q1"}, {"idx": 2}, ...]

If a user's own function reads the data, its rows are unknown.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from t0.caching.row_numbers import ExampleRows
from t0.compat import mesh_dataset, seqio, t5_mesh, tf
from t0.config.bindings import bound
from t0.evaluation.decoding import NUMBER
from t0.evaluation.records import draw_numbers
from t0.evaluation.settings import EvaluationSettings, first_records
from t0.feeding import data_spec, uncached
from t0.sources.documents import ids_in_rows


def configured_tasks() -> list[seqio.Task] | None:
    """Returns the tasks that mode `eval` reads; None if a user's own function reads the data."""
    ours = bound("run.eval_dataset_fn") is t5_mesh.mesh_eval_dataset_fn
    name = bound("mesh_eval_dataset_fn.mixture_or_task_name")
    if not ours or not name:
        return None
    split = bound("run.dataset_split", "train")
    names = EvaluationSettings().tasks or [name]
    tasks = [
        task for mixture in names for task in seqio.get_subtasks(data_spec.known_mixture(mixture))
    ]
    return [task for task in tasks if split in task.splits]


def select_examples(
    dataset_fn: Callable[..., Sequence[Any]], names: Collection[str] | None = None
) -> Callable[..., list[Any]]:
    """Returns a dataset function limited to some tasks and the configured number of examples.

    Args:
      dataset_fn: T5's dataset function of an evaluation.
      names: the names of the tasks; None for all tasks.
    """
    settings = EvaluationSettings()
    mixtures = [{"mixture_or_task_name": name} for name in settings.tasks] or [{}]

    def read(**keyword_arguments: Any) -> list[Any]:
        all_fields = (
            fields for mixture in mixtures for fields in dataset_fn(**keyword_arguments, **mixture)
        )
        named = (mesh_dataset.EvalDataset(*fields) for fields in all_fields)
        datasets = (dataset for dataset in named if names is None or dataset.name in names)
        return [
            limit_examples(dataset, settings.examples, configured_rows(dataset.name))
            for dataset in datasets
        ]

    return read


# A function that finds the rows of a task's examples in SeqIO's reading order.
FindRows = Callable[[], ExampleRows]


def configured_rows(name: str) -> FindRows | None:
    """Returns a function that finds the rows of a task's examples; None if they are unknown."""
    ours = bound("run.eval_dataset_fn") is t5_mesh.mesh_eval_dataset_fn
    shuffles = bound("mesh_eval_dataset_fn.shuffle_eval_examples")
    if not ours or shuffles or name not in seqio.TaskRegistry.names():
        return None
    find_rows = data_spec.find_rows(
        seqio.TaskRegistry.get(name),
        bound("run.dataset_split", "train"),
        use_cached=bool(bound("mesh_eval_dataset_fn.use_cached", False)),
    )
    most = first_records()
    return find_rows if find_rows is None or most is None else lambda: find_rows().first(most)


def describe_rows(
    find_rows: FindRows | None, max_examples: int | None
) -> list[dict[str, Any]] | None:
    """Returns the rows of a task's decoded examples, as `decoding.RowsOf` does.

    Args:
      find_rows: a function that finds the rows; None if they are unknown.
      max_examples: the size of the sample of rows; None for all rows.
    """
    if find_rows is None:
        return None
    rows = find_rows()
    numbers = [int(rows.numbers[position]) for position in _positions(rows, max_examples)]
    order, source = sorted(numbers), rows.source
    ids = ids_in_rows(source.dataset, source.subset, source.split, rows.count, order)
    id_of = dict(zip(order, ids, strict=True)) if ids else {}
    return [{"idx": number} | ({"id": id_of[number]} if id_of else {}) for number in numbers]


def _positions(rows: ExampleRows, max_examples: int | None) -> list[int]:
    """Returns the positions of the examples whose rows are in the sample."""
    if max_examples is None:
        return [*range(len(rows.numbers))]
    drawn = draw_numbers(rows.count, max_examples)
    return [position for position, row in enumerate(rows.numbers.tolist()) if row in drawn]


def limit_examples(
    dataset: Any, max_examples: int | None, find_rows: FindRows | None = None
) -> Any:
    """Limits a task's dataset to `max_examples`; None for all examples.

    Decoded tasks get a random sample of the dataset's rows, which `draw_sample` draws. If the rows
    are unknown, examples are drawn. The rank evaluation samples its records itself. Perplexity is
    measured on the first examples, because a stream of text may be too long to be counted.
    """
    if max_examples is None:
        return dataset

    def records(**keyword_arguments: Any) -> Any:
        examples = dataset.dataset_fn(**keyword_arguments)
        if "is_correct" in examples.element_spec:
            return examples
        if not dataset.metric_fns:
            return examples.take(max_examples)
        if find_rows is not None:
            sample = _positions(find_rows(), max_examples)
        else:
            counted = uncached.elements(
                lambda: dataset.dataset_fn(**keyword_arguments).map(lambda _: 0).batch(1024)
            )
            sample = [*draw_numbers(sum(map(len, counted)), max_examples)]
        return (
            examples.enumerate()
            .filter(lambda number, _: tf.reduce_any(tf.equal(number, sample)))
            .map(lambda number, example: {**example, NUMBER: number})
        )

    return dataset._replace(dataset_fn=records)

"""In mode `eval` without a TPU, ranks, decodes or measures each task, depending on its metrics.

    tasks = configured_tasks()
    kinds_of(tasks)                  # {"rank": [...], "decode": [...], "perplexity": [...]}
    check(tasks, lengths, on_tpu=False)          # UserError if a task is of another kind

| a task with | is | result |
|---|---|---|
| metrics of scores (`..._score_eval`) | ranked: every answer choice is scored | `results_<step>.json` |
| metrics of texts | decoded | `decoded_<step>.json` |
| targets and no metrics (span corruption, language models) | measured: nats per target token | `perplexity_<step>.json` |

The settings have the name `t0.evaluation` in gin. `t0 eval` binds them.
"""  # noqa: E501 (a table)

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from t0.caching.row_numbers import ExampleRows
from t0.compat import gin, mesh_dataset, seqio, t5_mesh, tf
from t0.config.bindings import bound
from t0.errors import UserError
from t0.evaluation import evaluate, perplexity
from t0.evaluation.decoded import NUMBER
from t0.evaluation.records import draw_numbers, sample_facts
from t0.feeding import live, opening
from t0.feeding.objectives import objective_of
from t0.inference.jobs import has_generator
from t0.inference.text_decoder import TextDecoder
from t0.sources.documents import ids_in_rows

RANK, DECODE, PERPLEXITY = "rank", "decode", "perplexity"


@gin.configurable("evaluation", module="t0")
@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """Settings of every kind of evaluation in modes `eval` and `score_eval`.

    Attributes:
      examples: the maximum number of examples per task. They are a random sample, with the same
        rows for all prompts of a dataset. For perplexity, they are the first examples. None for
        all.
      tasks: the tasks to evaluate instead of the mixture's tasks.
      source: the checkpoint's origin, such as a hub name with its revision. It is recorded in
        results files.
      name: the checkpoint's name as the user typed it, for results and reports.
      written_predictions: the maximum number of decoded examples per task that are written to the
        predictions file. The metrics include all examples. None for all.
      decoded: a folder with files `<task>_<step>.jsonl` of texts that another engine has decoded.
        If it is set, the run only computes the metrics of these texts.
      engine: the engine that computes scores, texts and losses: "tensorflow" or "torch".
      device: the device of the engine "torch": "cuda", "cpu", or "auto" for CUDA if there is a GPU.
    """

    examples: int | None = None
    tasks: Sequence[str] = ()
    source: str | None = None
    name: str | None = None
    written_predictions: int | None = None
    decoded: str | None = None
    engine: str = "tensorflow"
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.engine not in ("tensorflow", "torch"):
            raise UserError(
                f"evaluation.engine is {self.engine!r}; expected 'tensorflow' or 'torch'"
            )
        for name, least in (("examples", 1), ("written_predictions", 0)):
            count = getattr(self, name)
            if count is not None and (not isinstance(count, int) or count < least):
                raise UserError(
                    f"evaluation.{name} is {count!r}; expected a whole number from {least}"
                )


def configured_tasks() -> list[seqio.Task] | None:
    """Returns the tasks that mode `eval` reads; None if a user's own function reads the data."""
    ours = bound("run.eval_dataset_fn") is t5_mesh.mesh_eval_dataset_fn
    name = bound("mesh_eval_dataset_fn.mixture_or_task_name")
    if not ours or not name:
        return None
    split = bound("run.dataset_split", "train")
    names = EvaluationSettings().tasks or [name]
    tasks = [
        task for mixture in names for task in seqio.get_subtasks(opening.known_mixture(mixture))
    ]
    return [task for task in tasks if split in task.splits]


def kinds_of(tasks: Sequence[seqio.Task]) -> dict[str, list[seqio.Task]]:
    """Returns kind -> tasks. The kind "" has the tasks that cannot be evaluated."""
    tasks_by_kind: dict[str, list[seqio.Task]] = collections.defaultdict(list)
    for task in tasks:
        tasks_by_kind[_find_kind(task)].append(task)
    return dict(tasks_by_kind)


def is_ranked(task: seqio.Task) -> bool:
    """Returns whether a task is evaluated by ranking its answer choices."""
    return _find_kind(task) == RANK


def _find_kind(task: seqio.Task) -> str:
    if task.predict_metric_fns:
        return DECODE
    if task.score_metric_fns:
        return RANK
    if task.metric_fns:  # only SeqIO's own evaluator computes metrics of this kind
        return ""
    return PERPLEXITY if "targets" in task.output_features else ""


def check(
    tasks: Sequence[seqio.Task], lengths: Mapping[str, int] | None, *, on_tpu: bool
) -> list[str]:
    """Checks that every task can be evaluated, and describes the kinds of evaluation.

    Args:
      tasks: the mixture's tasks. All of them have the split to evaluate.
      lengths: feature -> maximum number of tokens, or None.
      on_tpu: whether the run is on a TPU. There, Mesh TensorFlow performs mode `eval`, which only
        decodes.

    Returns:
      lines to print.

    Raises:
      UserError: a task cannot be evaluated. The message suggests a fix.
    """
    kinds = kinds_of(tasks)
    model_type = bound("run.model_type", "bitransformer")
    check_kinds(kinds)
    evaluate.first_records()
    decoded_by_mesh = DECODE in kinds and (on_tpu or not has_generator(model_type))
    if decoded_by_mesh and bound("mesh_eval_dataset_fn.seed") is None:
        refuse_shuffling("Mesh TensorFlow shuffles inputs and targets differently without a seed")
    if on_tpu and set(kinds) != {DECODE}:
        kind = RANK if RANK in kinds else PERPLEXITY
        file = {RANK: "score_eval.gin", PERPLEXITY: "perplexity_eval.gin"}[kind]
        raise UserError(
            f"on a TPU, mode 'eval' only decodes, but task {kinds[kind][0].name} is for "
            f"{_IN_WORDS[kind]}: run it with --gin_file={file}"
        )
    if RANK in kinds and model_type != "bitransformer":
        raise UserError(
            f"task {kinds[RANK][0].name} ranks answer choices, which mode 'eval' only does for "
            f"encoder-decoders; run.model_type is '{model_type}'. Use --gin_file=score_eval.gin "
            "for a language model"
        )
    for task in kinds.get(PERPLEXITY, ()):
        _check_lengths(task, lengths)
    counts = [f"{len(ranked):,} {_PARTICIPLES[kind]}" for kind, ranked in kinds.items()]
    return [f"evaluation of {len(tasks):,} task(s): {', '.join(counts)}"]


def check_kinds(kinds: Mapping[str, Sequence[seqio.Task]]) -> None:
    """Raises a UserError if there is a task that cannot be ranked, decoded or measured."""
    if "" in kinds:
        raise UserError(
            f"task {kinds[''][0].name} cannot be evaluated in mode 'eval'. Expected a "
            "_score_eval task, a task with text metrics, or a task with targets"
        )


def check_shards(kinds: Mapping[str, Sequence[seqio.Task]], shards: int) -> None:
    """Raises a UserError if the run is divided into shards and a task is not ranked."""
    others = [task for kind, members in kinds.items() if kind != RANK for task in members]
    if shards != 1 and others:
        raise UserError(
            f"--num_shards={shards} is for ranked tasks, but {others[0].name} is not: evaluate "
            f"{'it' if len(others) == 1 else f'these {len(others)} tasks'} without --num_shards"
        )


_IN_WORDS = {RANK: "rank evaluation", PERPLEXITY: "perplexity", DECODE: "decoding"}
_PARTICIPLES = {RANK: "ranked", PERPLEXITY: "measured (perplexity)", DECODE: "decoded"}


def _check_lengths(task: seqio.Task, lengths: Mapping[str, int] | None) -> None:
    missing = [name for name in task.output_features if name not in (lengths or {})]
    if missing:
        example = {"inputs": 512, "targets": 114}
        lengths_of_task = {name: example.get(name, 512) for name in task.output_features}
        raise UserError(
            f"task {task.name} has no metrics, so its perplexity is measured, which needs a length "
            f"of {missing[0]}. TASK_FEATURE_LENGTHS (run.sequence_length) is "
            f'{dict(lengths) if lengths else None}: --gin.TASK_FEATURE_LENGTHS="{lengths_of_task}"'
        )
    objective_of(task, lengths)


def refuse_shuffling(reason: str) -> None:
    """Raises a UserError if the evaluation examples are shuffled.

    Args:
      reason: a clause for the message that explains why their order must not change.
    """
    if bound("mesh_eval_dataset_fn.shuffle_eval_examples"):
        raise UserError(
            f"mesh_eval_dataset_fn.shuffle_eval_examples is True, but {reason}: set it to False. "
            "For a random sample of 500 rows: --gin_param='t0.evaluation.examples = 500'"
        )


def refuse_settings(reason: str) -> None:
    """Raises a UserError if `t0.evaluation` is set in a run that Mesh TensorFlow evaluates.

    Args:
      reason: a clause for the message that explains why Mesh TensorFlow evaluates.
    """
    settings = dataclasses.asdict(EvaluationSettings())
    defaults = {field.name: field.default for field in dataclasses.fields(EvaluationSettings)}
    for name, value in settings.items():
        if value and value != defaults[name]:
            raise UserError(
                f"t0.evaluation.{name} is {value!r:.80}, but {reason}, which does not read it; set "
                f"it to {defaults[name]!r}, or use mode 'eval' without --tpu"
            )


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
    find_rows = opening.find_rows(
        seqio.TaskRegistry.get(name),
        bound("run.dataset_split", "train"),
        use_cached=bool(bound("mesh_eval_dataset_fn.use_cached", False)),
    )
    most = evaluate.first_records()
    return find_rows if find_rows is None or most is None else lambda: find_rows().first(most)


def describe_rows(
    find_rows: FindRows | None, max_examples: int | None
) -> list[dict[str, Any]] | None:
    """Returns the rows of a task's decoded examples, as `decoded.RowsOf` does.

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
            counted = live.elements(
                lambda: dataset.dataset_fn(**keyword_arguments).map(lambda _: 0).batch(1024)
            )
            sample = [*draw_numbers(sum(map(len, counted)), max_examples)]
        return (
            examples.enumerate()
            .filter(lambda number, _: tf.reduce_any(tf.equal(number, sample)))
            .map(lambda number, example: {**example, NUMBER: number})
        )

    return dataset._replace(dataset_fn=records)


def rank(arguments: Mapping[str, Any], checkpoint: str | None) -> None:
    """Ranks answer choices with our own rank evaluation.

    Args:
      arguments: the arguments of the run, as returned by `arguments.read`.
      checkpoint: the checkpoint to score; None for the checkpoints in the model directory.
    """
    torch_engine = torch_evaluation(arguments)
    evaluate.rank_evaluate(
        arguments,
        checkpoint,
        facts=given_facts(),
        make_decoder=functools.partial(
            TextDecoder, make_generator=torch_engine and torch_engine.make_generator
        ),
        make_scorer=torch_engine and torch_engine.make_scorer,
    )


def measure(arguments: Mapping[str, Any], checkpoint: str | None) -> None:
    """Measures nats per target token. The arguments are those of `rank`."""
    torch_engine = torch_evaluation(arguments)
    make_model = torch_engine and torch_engine.make_scorer
    perplexity.measure(arguments, checkpoint, facts=given_facts(), make_model=make_model)


def torch_evaluation(arguments: Mapping[str, Any]) -> Any:
    """Returns the configured model for PyTorch; None if TensorFlow evaluates.

    Args:
      arguments: the arguments of the run, as returned by `arguments.read`.
    """
    settings = EvaluationSettings()
    if settings.engine != "torch":
        return None
    from t0.run.torch_evaluation import TorchEvaluation  # a circular import

    return TorchEvaluation(arguments, settings.device)


def given_facts() -> dict[str, Any]:
    """Returns the settings that differ from their defaults. Results files record them as facts."""
    settings = EvaluationSettings()
    engine = settings.engine if settings.engine != "tensorflow" else None
    facts = {"name": settings.name, "source": settings.source, "engine": engine}
    stated = {name: value for name, value in facts.items() if value}
    return stated | sample_facts(settings.examples)

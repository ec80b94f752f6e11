"""Converts a configured run to a run specification, which an engine without gin can read.

    spec = run_spec("train", {"model_dir": "/models/tiny", ...})      # arguments of Mesh's `run`
    plain_data.to_json(spec)

The specification describes gin's bindings and the contents of SeqIO's registries. It includes the
defaults of parameters that gin does not bind. So its reader needs neither gin nor Mesh TensorFlow.
To find the model's numbers, this module builds the model, but no TensorFlow graph.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t0.compat import gin_config, mesh_utils, mtf, seqio
from t0.compat import tf1 as tf
from t0.config.bindings import bound, changed_parameters, is_configured
from t0.config.model_spec import ModelSpec
from t0.config.plain_values import parameters_of, to_plain
from t0.config.specification import (
    AdapterSpec,
    ChoiceLosses,
    ConfiguredSpec,
    DataSpec,
    InferSpec,
    JobSpec,
    RankSpec,
    RankTaskSpec,
    RunSpec,
    TaskSpec,
    VocabularySpec,
    read_value,
)
from t0.errors import UserError
from t0.evaluation.eval_datasets import configured_tasks
from t0.evaluation.kinds import DECODE, PERPLEXITY, RANK, is_ranked, kinds_of
from t0.evaluation.mesh_model import vocabulary_facts, vocabulary_hash
from t0.evaluation.rank_metrics import classes_of
from t0.evaluation.ranking import results_folder
from t0.evaluation.settings import (
    EvaluationSettings,
    RankEvaluationSettings,
    first_records,
    given_facts,
    reading_facts,
    refuse_shuffling,
)
from t0.evaluation.task_records import rank_task_facts
from t0.feeding import data_spec
from t0.inference import jobs
from t0.inference.predictions import PredictionJob
from t0.mesh import t5_model
from t0.run import run_arguments, run_records
from t0.run.data_checks import DATASET_FUNCTIONS

_DECAY = "mesh_tensorflow.optimize.adafactor_decay_rate_pow"
_MOST_RATES = 100_000  # of the last steps of a run: 2 MB of JSON, and 3 s to compute


def run_spec(
    mode: str, passed_arguments: Mapping[str, Any], checkpoint: str | None = None
) -> RunSpec:
    """Returns the specification of the run that gin configures.

    Args:
      mode: the run's mode.
      passed_arguments: the arguments that the command passes to Mesh TensorFlow's `run` by name,
        including the vocabulary.
      checkpoint: the checkpoint to read in a mode other than training; None for the checkpoints in
        the model directory.

    Raises:
      UserError: the run does not read its data with one of T5's dataset functions.
    """
    arguments = run_arguments.read(passed_arguments)
    trains = mode == "train"
    if trains:
        _refuse_unread(arguments)
    inputs = mesh_utils.inputs_vocabulary(arguments["vocabulary"])
    targets = mesh_utils.targets_vocabulary(arguments["vocabulary"])
    data = _data_spec(mode, arguments)
    validates = trains and bound("t0.train_loop.validate_every_steps")
    spec = RunSpec(
        mode=mode,
        model_dir=arguments["model_dir"],
        model=model_spec(arguments, inputs.vocab_size, targets.vocab_size),
        inputs_vocabulary=_vocabulary_spec(inputs),
        targets_vocabulary=_vocabulary_spec(targets),
        lengths=arguments["sequence_length"],
        batch_sequences=arguments["batch_size"],
        microbatches=microbatches(arguments) if trains else 1,
        train_steps=arguments["train_steps"],
        seed=_seed(mode),
        optimizer=configured("run.optimizer") if trains else None,
        schedule=_schedule_spec(arguments) if trains else None,
        schedule_steps=bound("run.total_run_steps") or arguments["train_steps"],
        clip_gradient_norm=bound("t0.apply_updates.clip_gradient_norm") if trains else None,
        variable_filter=to_plain(_variable_filter(arguments)),
        init_checkpoint=arguments["init_checkpoint"],
        init_variable_filter=bound("tpu_estimator_model_fn.init_variable_filter") or "",
        save_checkpoints_steps=arguments["save_checkpoints_steps"],
        keep_checkpoint_max=arguments["keep_checkpoint_max"],
        keep_checkpoints=parameters_of("t0.keep_checkpoints") if trains else {},
        training=parameters_of("t0.train_loop") if trains else {},
        choice_losses=read_value(vars(data_spec.ChoiceLosses()), ChoiceLosses, "choice_losses")
        if trains
        else ChoiceLosses(),
        data=data,
        validation=data_spec.split_spec(
            data, "validation", bound("t0.train_loop.validation_mixture")
        )
        if validates
        else None,
        adapter=configured_adapter() if trains else None,
        **_evaluation_fields(mode, arguments, checkpoint, (inputs, targets)),
    )
    records = run_records.training_records(arguments) if trains else {}
    return dataclasses.replace(spec, records=records)


# Functions of Mesh TensorFlow that choose the initial variables. gin binds a function to each.
_INITIAL = ("init_checkpoint_variable_mapping", "should_load_variable")


def _refuse_unread(arguments: Mapping[str, Any]) -> None:
    """Raises a UserError for a training setting of Mesh TensorFlow without an equal in PyTorch."""
    settings = [line for function in _INITIAL for line in changed_parameters(function)]
    if arguments["ensemble_inputs"]:
        settings.append(f"run.ensemble_inputs = {arguments['ensemble_inputs']!r}")
    if settings:
        raise UserError(
            f"{settings[0]} is not read with --engine=torch: unset it, or train with "
            "t5_mesh_transformer without --engine=torch"
        )


def _evaluation_fields(
    mode: str, arguments: Mapping[str, Any], checkpoint: str | None, vocabularies: tuple[Any, Any]
) -> dict[str, Any]:
    """Returns the fields that specifications only have in modes other than training.

    Raises:
      UserError: if gin binds a setting that only TensorFlow's modes read.
    """
    if unread := changed_parameters("get_checkpoint_iterator"):
        raise UserError(
            f"{unread[0]} is not read with --engine=torch, which has no waiting; name the "
            "checkpoints with run.eval_checkpoint_step"
        )
    if mode != "train" and bound("run.predict_fn", evaluate=False) is not None:
        raise UserError(
            "run.predict_fn is a function of TensorFlow, which the PyTorch engine cannot call: "
            "unset it, or leave out --engine=torch"
        )
    if mode == "score_eval":
        return {"rank": rank_spec(arguments, checkpoint, vocabularies[1])}
    if mode == "infer":
        return {"infer": _infer_spec(arguments, checkpoint, vocabularies)}
    tasks = configured_tasks() if mode == "eval" else None
    kinds = kinds_of(tasks or ())
    if measured_tasks := kinds.get(PERPLEXITY):
        raise UserError(
            f"task {measured_tasks[0].name} has no metrics, so its perplexity is measured, which a "
            "specification does not support. Use t5_mesh_transformer without --engine=torch"
        )
    fields: dict[str, Any] = {}
    if RANK in kinds:
        fields["rank"] = rank_spec(arguments, checkpoint, vocabularies[1])
    if decoded_tasks := kinds.get(DECODE):
        fields["infer"] = _decoding_spec(decoded_tasks, arguments, checkpoint, vocabularies)
    return fields


def configured_adapter() -> AdapterSpec | None:
    """Returns the adapter that gin configures; None if it configures none."""
    if not is_configured("t0.adapter"):
        return None
    return read_value(parameters_of("t0.adapter"), AdapterSpec, "adapter")


def microbatches(arguments: Mapping[str, Any]) -> int:
    """Returns the number of microbatches into which a replica's batch is split.

    Args:
      arguments: the result of `run_arguments.read`.
    """
    outer = bound("tpu_estimator_model_fn.outer_batch_size", 1) or 1
    return mesh_utils.serialize_num_microbatches(
        mtf.Dimension("batch", arguments["batch_size"] // outer),
        arguments["sequence_length"],
        arguments["mesh_shape"],
        arguments["layout_rules"],
    )


def _variable_filter(arguments: Mapping[str, Any]) -> Any:
    return arguments["variable_filter"] or bound("tpu_estimator_model_fn.variable_filter")


def _seed(mode: str) -> int:
    return bound({"infer": "t0.infer.seed"}.get(mode, "t0.train_loop.seed"), 0)


def _vocabulary_spec(vocabulary: Any) -> VocabularySpec:
    return VocabularySpec(
        file=str(getattr(vocabulary, "sentencepiece_model_file", vocabulary)),
        size=vocabulary.vocab_size,
        extra_ids=getattr(vocabulary, "extra_ids", 0) or 0,
    )


def _data_spec(mode: str, arguments: Mapping[str, Any]) -> DataSpec | None:
    """Returns the specification of a mode's data; None if the mode does not read a mixture."""
    function = DATASET_FUNCTIONS.get(mode)
    if function is None:
        return None
    lengths, split = arguments["sequence_length"], arguments["dataset_split"]
    if mode == "train":
        data = data_spec.open_dataset_function(
            arguments["train_dataset_fn"],
            _seed(mode),
            sequence_length=lengths,
            vocabulary=arguments["vocabulary"],
            dataset_split=split,
        )
        if data.spec is None:
            raise UserError(
                f"the training data comes from {data.origin}, which a specification cannot "
                "describe; expected T5's mesh_train_dataset_fn, which --gin_file=dataset.gin "
                "binds, and a mixture that is drawn by rates. Train without --engine=torch"
            )
        return data.spec
    data = data_spec.data_spec(
        bound(f"{function}.mixture_or_task_name"),
        lengths or {},
        dataset_split=split,
        shuffle=False,
        use_cached=bound(f"{function}.use_cached", False),
        pack=False,
    )
    tasks = data.tasks
    chosen = EvaluationSettings().tasks if mode in ("eval", "score_eval") else ()
    if chosen:
        tasks = tuple(
            data_spec.task_spec(
                seqio.TaskRegistry.get(name), split, lengths or {}, use_cached=data.use_cached
            )
            for name in chosen
        )
    for task in tasks:
        _require_finished(task, use_cached=data.use_cached)
    tasks = tuple(dataclasses.replace(task, rank=_rank_task(task.name, split)) for task in tasks)
    return dataclasses.replace(data, tasks=tasks)


def _require_finished(spec: TaskSpec, *, use_cached: bool) -> None:
    """Checks that a cache that is evaluated has finished examples.

    Raises:
      UserError: if steps run after the cache, which need SeqIO.
    """
    if not use_cached or spec.cache_files:
        return
    task = seqio.TaskRegistry.get(spec.name)
    if task.cache_dir:
        steps = task.preprocessors[task._cache_step_idx + 1 :]
        names = ", ".join(getattr(getattr(x, "func", x), "__name__", str(x)) for x in steps)
        raise UserError(
            f"task {spec.name} is cached, but {names or type(task).__name__} runs after its cache, "
            "and only SeqIO runs this: the PyTorch engine evaluates and predicts finished examples "
            "only. Leave out --engine=torch, or make seqio.CacheDatasetPlaceholder() the last "
            "preprocessor, and cache the task again"
        )


def _rank_task(name: str, split: str) -> RankTaskSpec | None:
    """Returns the facts about a task that are needed to rank it; None if the task is not ranked."""
    task = seqio.TaskRegistry.get(name)
    if not is_ranked(task):
        return None
    classes_by_metric = [classes_of(metric) for metric in task.metric_fns]
    others = [
        getattr(metric, "__name__", str(metric))
        for metric, classes in zip(task.metric_fns, classes_by_metric, strict=True)
        if classes is None
    ]
    classes = tuple(counts[0] for counts in classes_by_metric if counts is not None)
    facts = rank_task_facts(name, split)
    return RankTaskSpec(facts.dataset, facts.prompt, classes, tuple(others), facts.rows)


def rank_spec(arguments: Mapping[str, Any], checkpoint: str | None, vocabulary: Any) -> RankSpec:
    """Returns the specification of a rank evaluation.

    Args:
      arguments: the result of `run_arguments.read`.
      checkpoint: the checkpoint to read; None for the checkpoints in the model directory.
      vocabulary: the vocabulary of the targets.
    """
    return RankSpec(
        folder=results_folder(arguments),
        checkpoint=checkpoint,
        steps=to_plain(arguments["eval_checkpoint_step"]),
        settings=dataclasses.asdict(RankEvaluationSettings()),
        reading=to_plain(reading_facts()),
        vocabulary=vocabulary_facts(vocabulary),
        given=to_plain(given_facts()),
    )


def _infer_spec(
    arguments: Mapping[str, Any], checkpoint: str | None, vocabularies: tuple[Any, Any]
) -> InferSpec:
    """Returns the specification of the predictions in mode "infer"."""
    if not jobs.uses_own_inference(arguments["model_type"]):
        raise UserError(
            "a specification only supports predictions of encoder-decoders, with "
            "--gin_file=runs/infer.gin, or with T5's infer.gin and decode_from_file"
            + "".join(f"; it cannot have {line}" for line in jobs.unread_settings()[:1])
        )
    settings = jobs.InferenceSettings()
    predictions = (
        jobs.make_jobs(settings, arguments) if settings.configured else jobs.make_t5_jobs(arguments)
    )
    named = bound("t0.infer.mixture_or_task_name")
    feature = data_spec.known_mixture(named).output_features.get("inputs") if named else None
    vocabulary = feature.vocabulary if feature else vocabularies[0]
    return InferSpec(
        checkpoint=checkpoint,
        steps=to_plain(arguments["eval_checkpoint_step"]),
        vocabulary_sha256=vocabulary_hash(vocabularies[0]),
        jobs=tuple(
            # Write the type that "auto" means here, because it may mean another type on another
            # machine.
            _job_spec(job, settings.activation_dtype, vocabulary, arguments["sequence_length"])
            for job in predictions
        ),
    )


def _decoding_spec(
    tasks: Sequence[Any],
    arguments: Mapping[str, Any],
    checkpoint: str | None,
    vocabularies: tuple[Any, Any],
) -> InferSpec:
    """Returns the specification of the texts that mode "eval" decodes."""
    lengths = arguments["sequence_length"]
    if not lengths:
        raise UserError(
            f"a specification needs lengths to decode task {tasks[0].name}: "
            "--gin.TASK_FEATURE_LENGTHS=\"{'inputs': 512, 'targets': 64}\""
        )
    refuse_shuffling("--engine=torch decodes a task in the order of its cache")
    predictions = jobs.make_evaluation_jobs(
        arguments, tasks, folder=f"{results_folder(arguments)}/decoding"
    )
    activations = mesh_utils.get_variable_dtype().activation_dtype.name
    limits = {"first": first_records(), "examples": EvaluationSettings().examples}
    return InferSpec(
        checkpoint=checkpoint,
        steps=to_plain(arguments["eval_checkpoint_step"]),
        vocabulary_sha256=vocabulary_hash(vocabularies[0]),
        jobs=tuple(
            dataclasses.replace(_job_spec(job, activations, vocabularies[0], lengths), **limits)
            for job in predictions
        ),
    )


def _job_spec(
    job: PredictionJob, activations: str, vocabulary: Any, lengths: Mapping[str, int]
) -> JobSpec:
    origin = dict(job.examples.origin)
    task, use_cached = origin.pop("task", None), origin.pop("use_cached", False)
    split = origin.pop("split", "")
    spec = task and data_spec.task_spec(
        seqio.TaskRegistry.get(task), split, lengths, use_cached=use_cached
    )
    if spec:
        _require_finished(spec, use_cached=use_cached)
    return JobSpec(
        path=job.path,
        as_json=job.as_json,
        settings=dataclasses.asdict(job.settings) | {"activation_dtype": activations},
        limits=to_plain(dataclasses.asdict(job.limits)),
        split=split,
        task=spec,
        vocabulary="" if task else _vocabulary_spec(vocabulary).file,
        **origin,
    )


def model_spec(arguments: Mapping[str, Any], inputs_size: int, targets_size: int) -> ModelSpec:
    """Returns the specification of the model that gin configures.

    Args:
      arguments: the result of `run_arguments.read`.
      inputs_size: the number of ids in the inputs' vocabulary. The model's embedding may be larger.
      targets_size: the number of ids in the targets' vocabulary. The model's embedding may be
        larger.
    """
    model = mesh_utils.build_model(
        model_type=arguments["model_type"],
        input_vocab_size=inputs_size,
        output_vocab_size=targets_size,
        layout_rules=arguments["layout_rules"],
        mesh_shape=arguments["mesh_shape"],
    )
    types = mesh_utils.get_variable_dtype()
    t5, other = t5_model.read(arguments["model_type"], model)
    return ModelSpec(t5, other, types.activation_dtype.name, types.master_dtype.name)


def _schedule_spec(arguments: Mapping[str, Any]) -> ConfiguredSpec | float | None:
    """Returns the schedule of a run; if the user registered it with gin, as a table of its rates.

    Only Mesh TensorFlow's schedules and ours can be computed without gin. The table has the float32
    rates of a TensorFlow graph, as in training on Mesh TensorFlow.
    """
    schedule, steps = configured("run.learning_rate_schedule"), arguments["train_steps"]
    if not isinstance(schedule, ConfiguredSpec):
        return schedule
    factors = (x for x in schedule.parameters.get("factors") or () if isinstance(x, Mapping))
    selectors = [schedule.selector, *(factor["selector"] for factor in factors)]
    if all(selector.startswith(("t0.", "mesh_tensorflow.")) for selector in selectors):
        return schedule
    first = max(0, steps - _MOST_RATES)
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = tf.cast(arguments["learning_rate_schedule"](step=step), tf.float32)
        compute = session.make_callable(rate, [step])
        rates = [float(compute(n)) for n in range(first, steps)]
    named = " * ".join(f"@{selector}" for selector in selectors)
    return ConfiguredSpec("t0.table", {"schedule": named, "first_step": first, "rates": rates})


def configured(parameter: str) -> ConfiguredSpec | float | None:
    """Returns the value bound to a parameter of `run`, such as a class and its parameters."""
    value = bound(parameter, evaluate=False)
    if isinstance(value, gin_config.ConfigurableReference):
        scope, selector = value.config_key
        parameters = parameters_of(selector, scope)
        if parameters.get("decay_rate", 0) is None:  # then Adafactor calls the function below
            parameters["decay_rate"] = {
                "selector": _DECAY,
                "parameters": parameters_of(_DECAY, scope),
            }
        return ConfiguredSpec(selector, parameters)
    if isinstance(value, list):
        product = "mesh_tensorflow.transformer.learning_rate_schedules.product_learning_rate"
        return ConfiguredSpec(product, {"factors": to_plain(value)})
    return None if value is None else float(value)

"""Translates T5X's gin statements into ours, in gin files and on the command line.

    # train/utils.DatasetConfig.batch_size = 8           ->  BATCH_SIZE = 8
    # include 't5x/configs/runs/pretrain.gin'            ->  include 'runs/pretrain.gin'
    # from __gin__ import dynamic_registration           ->  nothing
    ours_for("trainer.Trainer.learning_rate_fn")    # a sentence that names our parameter

T5X's macros (MIXTURE_OR_TASK_NAME, TASK_FEATURE_LENGTHS, TRAIN_STEPS, MODEL_DIR ...) have the same
names in our run files. `T5X` translates the parameters of T5X's classes and functions, and the
macros that our run files do not read. `StatementParser` applies it to every statement that gin
parses. A name that the user has registered with gin is never translated.
"""

import collections
import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from t0.compat import gin_config, gin_parser
from t0.config.bindings import bound
from t0.config.gin_files import local_name
from t0.errors import UserError, nearest

Bindings = list[tuple[str, Any]]


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A setting of T5X that does not change our results.

    Attributes:
      reason: the reason, which is printed; "" for T5X's own wiring, which is skipped silently.
    """

    reason: str = ""


# A rule is one of these:
# - our parameters, which get the same value
# - a function of the value, which returns our bindings or, if there are none, advice for an error
# - advice for an error, if no value has an equivalent
# - `Skipped`
Rule = tuple[str, ...] | Callable[[Any], Bindings | str] | str | Skipped

_LENIENT = gin_config.ParserDelegate(skip_unknown=True)
_NOAM = "learning_rate_schedule_noam"
_SCHEDULE = "run.learning_rate_schedule, such as @t0.cosine_with_warmup, and its parameters"
_CHECKPOINT = "INIT_CHECKPOINT in training and CHECKPOINT_PATH in evaluation, or --checkpoint"
_LOSS_AVERAGE = "t0.train_loop.loss_average"
_LOSS_DENOMINATOR = "decoder/Unitransformer.loss_denominator"
# T5X's loss normalizing factor -> our value of `loss_average`, the units over which we average.
_LOSS_AVERAGES = {
    "AVERAGE_PER_SEQUENCE": "sequences",
    "NUM_REAL_TARGET_TOKENS": "tokens",
    "NUM_TOTAL_TARGET_TOKENS": "positions",
    None: "positions",
}


def _macro(name: str) -> Any:
    return gin_config.ParserDelegate().macro(name)


def _unless_none(*targets: str) -> Callable[[Any], Bindings]:
    return lambda value: [(target, value) for target in targets if value is not None]


def _only(allowed: Any, advice: str) -> Callable[[Any], Bindings | str]:
    return lambda value: [] if value == allowed else advice


def _normalize_loss(factor: Any) -> Bindings | str:
    name = factor if isinstance(factor, str) else None
    if name not in _LOSS_AVERAGES:
        return f"{_LOSS_AVERAGE}, or {_LOSS_DENOMINATOR} for a number"
    denominator = factor if name is None else None
    return [(_LOSS_AVERAGE, _LOSS_AVERAGES[name]), (_LOSS_DENOMINATOR, denominator)]


def _normalize_loss_by_macro(factor: Any) -> Bindings | str:
    macro, bindings = "LOSS_NORMALIZING_FACTOR", _normalize_loss(factor)
    if isinstance(bindings, str):
        return bindings
    # If the factor is not a number, the macro becomes None. The macro must remain, because other
    # bindings of T5X may read it.
    return [bindings[0], (macro, bindings[1][1]), (_LOSS_DENOMINATOR, _macro(macro))]


def _normalize_loss_of_model(factor: Any) -> Bindings | str:
    return [] if repr(factor) == "%LOSS_NORMALIZING_FACTOR" else _normalize_loss(factor)


def _validate_on(mixture: Any) -> Bindings:
    is_training = repr(mixture) == "%MIXTURE_OR_TASK_NAME"
    return [] if is_training else [("t0.train_loop.validation_mixture", mixture)]


def _choose_schedule(factors: Any) -> Bindings | str:
    schedules = {"constant": "constant_learning_rate", "constant*rsqrt_decay": _NOAM}
    schedule = schedules.get(str(factors).replace(" ", ""))
    if schedule is None:
        return _SCHEDULE
    reference = _LENIENT.configurable_reference(f"learning_rate_schedules.{schedule}", False)
    bindings = [("run.learning_rate_schedule", reference), (f"{_NOAM}.linear_decay_fraction", 0.0)]
    rate = bound("constant_learning_rate.learning_rate")
    if schedule == _NOAM and rate is not None:
        # T5X's finetune.gin sets the rate and 1,000 warmup steps for every schedule.
        values = {"multiplier": rate, "warmup_steps": 1000}
        bindings += [
            (f"{_NOAM}.{name}", value)
            for name, value in values.items()
            if bound(f"{_NOAM}.{name}") is None
        ]
    return bindings


def _choose_activations(names: Sequence[str]) -> Bindings:
    return [("DenseReluDense.activation", names[0] if len(names) == 1 else list(names))]


def _decode_with(beams: Any) -> Bindings:
    parameters = ("Bitransformer.decode.beam_size", "t0.infer.beam_size")
    return [("BEAM_SIZE", beams), *((name, _macro("BEAM_SIZE")) for name in parameters)]


def _refers(pattern: str, advice: str) -> Callable[[Any], Bindings | str]:
    """Returns a rule that skips macros and T5X's own functions whose names match a pattern."""

    def skip(value: Any) -> Bindings | str:
        names = (repr(value), str(getattr(value, "selector", "")))  # of a macro, of a function
        return [] if any(re.fullmatch(pattern, name) for name in names) else advice

    return skip


def _restore(config: Any) -> Bindings | str:
    if config is None:
        return [("INITIAL_CHECKPOINT_PATH", None)]
    return _refers(r"(.*\.)?RestoreCheckpointConfig", _CHECKPOINT)(config)


def _import_module(name: Any) -> Bindings:
    return [("import", name)] if isinstance(name, str) else []


_WIRING = Skipped()
_POSITION = "the step of a checkpoint gives the position in the data"
_VOCABULARY = Skipped("the vocabulary comes from the tasks; see --vocab")
_SMOOTHING, _Z_LOSS = "decoder/Unitransformer.label_smoothing", "decoder/Unitransformer.z_loss"
_PARALLELISM = "tpu_mesh_shape.model_parallelism"
# Name of a macro or parameter of T5X, without its module -> rule. If a name has a rule with a scope
# and a rule without a scope, the rule with the scope is used.
T5X: dict[str, Rule] = {
    "DROPOUT_RATE": ("dropout_rate",),
    "LABEL_SMOOTHING": (_SMOOTHING,),
    "Z_LOSS": (_Z_LOSS,),
    "LOSS_NORMALIZING_FACTOR": _normalize_loss_by_macro,
    "CHECKPOINT_PERIOD": ("run.save_checkpoints_steps",),
    "JSON_WRITE_N_RESULTS": ("t0.evaluation.written_predictions",),
    "EVALUATOR_NUM_EXAMPLES": ("t0.evaluation.examples",),
    "EVALUATOR_USE_MEMORY_CACHE": _WIRING,
    "PJIT_PARTITIONS": (_PARALLELISM,),
    "MIXTURE_OR_TASK_MODULE": _import_module,
    "RANDOM_SEED": _unless_none("RANDOM_SEED"),
    "USE_HARDWARE_RNG": _WIRING,
    "VOCABULARY": _VOCABULARY,
    "MODEL": "a gin file, such as models/t5.1.1.base.gin: include it, and delete this line",
    "train_eval/DatasetConfig.mixture_or_task_name": _validate_on,
    "train_eval/DatasetConfig.split": _only("validation", "always the split 'validation'"),
    "train_eval/DatasetConfig": Skipped("validation reads the training's lengths, batch and cache"),
    "infer_eval/DatasetConfig": Skipped("t0.task_metrics sets the metrics during training"),
    "train/DatasetConfig.split": ("run.dataset_split",),
    "DatasetConfig.mixture_or_task_name": ("MIXTURE_OR_TASK_NAME",),
    "DatasetConfig.task_feature_lengths": ("TASK_FEATURE_LENGTHS",),
    "DatasetConfig.batch_size": ("BATCH_SIZE",),
    "DatasetConfig.use_cached": ("USE_CACHED_TASKS",),
    "DatasetConfig.shuffle": ("mesh_train_dataset_fn.shuffle",),
    "DatasetConfig.seed": _unless_none("mesh_train_dataset_fn.seed", "mesh_eval_dataset_fn.seed"),
    "DatasetConfig.split": ("MIXTURE_OR_TASK_SPLIT",),
    "DatasetConfig.pack": ("mesh_train_dataset_fn.pack",),
    "DatasetConfig.use_custom_packing_ops": _WIRING,
    "DatasetConfig.module": _import_module,
    "SaveCheckpointConfig.period": ("run.save_checkpoints_steps",),
    "SaveCheckpointConfig.keep": ("run.keep_checkpoint_max",),
    "SaveCheckpointConfig.dtype": ("get_variable_dtype.master_dtype",),
    "SaveCheckpointConfig.save_dataset": Skipped(f"{_POSITION} (on a TPU, with --write_stream)"),
    "RestoreCheckpointConfig.path": _refers(r"%(INITIAL_)?CHECKPOINT_PATH|None", _CHECKPOINT),
    "RestoreCheckpointConfig.mode": _WIRING,
    "RestoreCheckpointConfig.dtype": _WIRING,
    "RestoreCheckpointConfig.restore_dataset": Skipped(_POSITION),
    "RestoreCheckpointConfig": _CHECKPOINT,
    "CheckpointConfig.restore": _restore,
    "CheckpointConfig": _WIRING,
    "PjitPartitioner.num_partitions": (_PARALLELISM,),
    "ModelBasedPjitPartitioner.num_partitions": (_PARALLELISM,),
    "PjitPartitioner": _WIRING,
    "ModelBasedPjitPartitioner": _WIRING,
    "trainer.Trainer.num_microbatches": Skipped(
        "to use less memory, set serialize_num_microbatches.tokens_per_microbatch_per_replica"
    ),
    "trainer.Trainer.learning_rate_fn": _refers(
        r"(.*\.)?create_learning_rate_scheduler", _SCHEDULE
    ),
    "trainer.Trainer": "a parameter of run or t0.train_loop (docs/reference.md)",
    "create_learning_rate_scheduler.factors": _choose_schedule,
    "create_learning_rate_scheduler.base_learning_rate": (
        "constant_learning_rate.learning_rate",
        f"{_NOAM}.multiplier",
    ),
    "create_learning_rate_scheduler.warmup_steps": (f"{_NOAM}.warmup_steps",),
    "create_learning_rate_scheduler": _SCHEDULE,
    "train_script.train.total_steps": ("TRAIN_STEPS",),
    "train_script.train.eval_steps": ("EVAL_STEPS",),
    "train_script.train.eval_period": ("EVAL_PERIOD",),
    "train_script.train.random_seed": _unless_none("RANDOM_SEED"),
    "train_script.train.model_dir": ("MODEL_DIR",),
    "train_script.train.get_dataset_fn": Skipped("the order of the data is always deterministic"),
    "train_script.train.actions": "a parameter of t0.train_loop, such as stop_after_evaluations",
    "train_script.train": _WIRING,
    "eval_script.evaluate.output_dir": ("EVAL_OUTPUT_DIR",),
    "eval_script.evaluate": _WIRING,
    "infer_script.infer.output_dir": ("INFER_OUTPUT_DIR",),
    "infer_script.infer.shard_id": ("SHARD_ID",),
    "infer_script.infer.num_shards": ("NUM_SHARDS",),
    "infer_script.infer.mode": _only("predict", "run.mode, such as 'score_from_dataset'"),
    "infer_script.infer": _WIRING,
    "seqio.Evaluator.num_examples": ("t0.evaluation.examples",),
    "seqio.Evaluator": _WIRING,
    "seqio.JSONLogger.write_n_results": ("t0.evaluation.written_predictions",),
    "seqio.SentencePieceVocabulary": _VOCABULARY,
    "EncoderDecoderModel.z_loss": (_Z_LOSS,),
    "EncoderDecoderModel.label_smoothing": (_SMOOTHING,),
    "EncoderDecoderModel.loss_normalizing_factor": _normalize_loss_of_model,
    "DecoderOnlyModel": "models/lm_v1.gin, a decoder without an encoder",
    "predict_batch_with_aux.num_decodes": _decode_with,
    "predict_batch_with_aux": "a parameter of t0.infer and of Bitransformer.decode",
    "T5Config.emb_dim": ("d_model",),
    "T5Config.num_heads": ("num_heads",),
    "T5Config.num_encoder_layers": ("encoder/make_layer_stack.num_layers",),
    "T5Config.num_decoder_layers": ("decoder/make_layer_stack.num_layers",),
    "T5Config.head_dim": ("d_kv",),
    "T5Config.mlp_dim": ("d_ff",),
    "T5Config.mlp_activations": _choose_activations,
    "T5Config.dropout_rate": ("dropout_rate",),
    "T5Config.logits_via_embedding": ("Unitransformer.shared_embedding_and_softmax_weights",),
    "T5Config.vocab_size": Skipped("the size comes from the vocabulary of the tasks"),
    "T5Config.dtype": Skipped("see --activation_dtype"),
    "network.Transformer.config": _WIRING,
    "adafactor.Adafactor.logical_factor_rules": _WIRING,
    "adafactor.Adafactor": "run.optimizer = @optimize.AdafactorOptimizer, and its parameters",
}


def ours_for(text: str) -> str | None:
    """Returns a sentence about the first T5X name in a text, or None if the text has none."""
    for match in re.finditer(r"[\w./]*\w", text):
        scope, _, path = match[0].rpartition("/")
        selector, _, parameter = path.rpartition(".")
        rule = _rule_of(scope, selector, parameter) or _rule_of(scope, path, "")
        if rule and "." in path:
            return f"{match[0]} is T5X's: here it is {_describe(rule)}"
    return None


def _describe(rule: Rule) -> str:
    if isinstance(rule, Skipped):
        return f"nothing to set ({rule.reason or 'T5X needs it only to connect its own classes'})"
    if isinstance(rule, str | tuple):
        return rule if isinstance(rule, str) else " and ".join(rule)
    return "another gin parameter, which depends on the value (docs/training.md)"


def _rule_of(scope: str, selector: str, parameter: str) -> Rule | None:
    """Returns the rule of a parameter, of a function if `parameter` is "", or of a macro."""
    path = selector.split(".")
    for name in (".".join(path[-2:]), path[-1]):
        for prefix in (f"{scope}/", "") if scope else ("",):
            for key in (f"{prefix}{name}.{parameter}", f"{prefix}{name}"):
                if key in T5X:
                    return T5X[key]
    return None


def _parameters_of(selector: str) -> list[str]:
    """Returns the parameters of a T5X function or class that the table `T5X` contains."""
    path = selector.split(".")
    names = {".".join(path[-2:]), path[-1]}
    rows = (key.rpartition("/")[2].rpartition(".") for key in T5X)
    return [parameter for name, _, parameter in rows if name in names]


def _is_t5x(selector: str) -> bool:
    rules = _rule_of("", selector, "") or _parameters_of(selector)
    return bool(rules) and not gin_config._REGISTRY.matching_selectors(selector)


class StatementParser(gin_parser.ConfigParser):
    """Parses gin statements like gin, and translates T5X's statements into ours.

    Args:
      text: a text or an open file, as for gin's parser.
      delegate: gin's delegate, which makes references and macros.
      folders: the folders that are searched for gin files after the working directory.
      statements: the parser appends each statement to this list.
      skipped: name of a setting of T5X -> the reason why it was skipped. The parser adds to it.
    """

    def __init__(
        self,
        text: Any,
        delegate: Any,
        *,
        folders: Sequence[str],
        statements: list[Any],
        skipped: dict[str, str],
    ) -> None:
        self._folders, self._statements, self._skipped = folders, statements, skipped
        self._translated: collections.deque[Any] = collections.deque()
        super().__init__(text, _Delegate(delegate))

    def parse_statement(self) -> Any:
        """Returns the next statement, or None at the end of the text.

        Raises:
          UserError: the statement sets a parameter of T5X that has another form here.
        """
        while not self._translated:
            statement = super().parse_statement()
            if statement is None:
                return None
            self._translated.extend(self._translate(statement))
        self._statements.append(self._translated[0])
        return self._translated.popleft()

    def _translate(self, statement: Any) -> list[Any]:
        if isinstance(statement, gin_parser.IncludeStatement):
            return [statement._replace(filename=local_name(statement.filename, self._folders))]
        if isinstance(statement, gin_parser.ImportStatement):
            package = statement.module.partition(".")[0]
            return [] if package in ("__gin__", "__main__", "t5x") else [statement]
        if not isinstance(statement, gin_parser.BindingStatement):  # the first line of a block
            return [] if _is_t5x(statement.selector) else [statement]
        if not statement.arg_name:
            return self._translate_macro(statement)
        if not _is_t5x(statement.selector):
            return [statement]
        rule = _rule_of(statement.scope, statement.selector, statement.arg_name)
        if rule is None:
            close = nearest(statement.arg_name, _parameters_of(statement.selector))
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise UserError(
                f"T5X's {statement.selector} has no parameter '{statement.arg_name}' that is known "
                f"here ({_locate(statement)}).{hint}"
            )
        return self._apply(rule, statement)

    def _translate_macro(self, statement: Any) -> list[Any]:
        # Only a reference to an unknown function has a `selector` that is text.
        reference = getattr(statement.value, "selector", None)
        rule = None if statement.scope else T5X.get(statement.selector)
        if isinstance(reference, str) and _is_t5x(reference):
            final = isinstance(rule, str | Skipped)
            return self._apply(rule if final else _rule_of("", reference, "") or _WIRING, statement)
        if rule is None or isinstance(rule, str):
            return [statement]
        if isinstance(rule, tuple):
            macro = _macro(statement.selector)
            return [statement, *(_bind(target, macro, statement) for target in rule)]
        return self._apply(rule, statement)

    def _apply(self, rule: Rule, statement: Any) -> list[Any]:
        scope, selector, parameter, value, _ = statement
        name = f"{scope and scope + '/'}{selector}{parameter and '.' + parameter}"
        if isinstance(rule, Skipped):
            if rule.reason:
                self._skipped[name] = rule.reason
            return []
        if isinstance(rule, tuple):
            bindings: Bindings | str = [(target, value) for target in rule]
        else:
            bindings = rule if isinstance(rule, str) else rule(value)
        if isinstance(bindings, str):
            raise UserError(f"{name} is T5X's: here it is {bindings} ({_locate(statement)})")
        # A macro that is bound to itself, such as MODEL_DIR = %MODEL_DIR, would have no value.
        return [_bind(target, v, statement) for target, v in bindings if repr(v) != f"%{target}"]


def _bind(target: str, value: Any, statement: Any) -> Any:
    if target == "import":
        return gin_parser.ImportStatement(value, False, None, statement.location)
    return gin_parser.BindingStatement(
        *gin_parser.parse_binding_key(target), value, statement.location
    )


def _locate(statement: Any) -> str:
    location = statement.location
    return f"{location.filename}:{location.line_num}" if location.filename else "--gin_param"


class _Delegate:
    """Makes references and macros like gin's delegate, also for functions that only T5X has."""

    def __init__(self, published: Any) -> None:
        self.macro = published.macro
        self._published = published

    def configurable_reference(self, name: str, evaluate: bool) -> Any:
        """Returns gin's reference to a function.

        For a function that only T5X has, this is gin's placeholder for an unknown function.
        """
        delegate = _LENIENT if _is_t5x(name.rpartition("/")[2]) else self._published
        return delegate.configurable_reference(name, evaluate)

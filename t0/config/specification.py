"""Defines the run specification, which describes as plain data what an engine needs for a run.

The command reads gin and SeqIO's registries once and makes a `RunSpec`, which contains only
numbers, text, lists and mappings. A `RunSpec` can be written as JSON. Another process can read this
JSON, even if that process imports neither gin nor TensorFlow:

    text = to_json(spec)
    from_json(text, RunSpec) == spec

Lengths are in tokens. Batch sizes are numbers of sequences in the global batch.
"""

import dataclasses
import posixpath
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from t0.config import t5_layers
from t0.config.model_spec import ModelSpec
from t0.config.plain_data import (
    Count,
    NotNegative,
    Positive,
    Range,
    Record,
    Rows,
    Tokens,
    read_plain,
)
from t0.errors import UserError
from t0.files.untrusted import find_lone_surrogate, parsed_json

SCHEMA = 2


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """A feature of a task.

    Attributes:
      add_eos: whether SeqIO ends the feature with EOS.
      vocabulary: the path of the feature's SentencePiece model; None if the feature's vocabulary is
        of another kind.
    """

    add_eos: bool
    vocabulary: str | None = None


@dataclasses.dataclass(frozen=True)
class ObjectiveSpec:
    """A pretraining objective of T5, which turns a task's documents into examples during training.

    Attributes:
      selector: gin's name of T5's preprocessor: "t5.data.preprocessors.span_corruption",
        "...prefix_lm" or "...full_lm".
      parameters: the preprocessor's numeric parameters, including defaults.
      segment_tokens: the length of the segments into which documents are split.
      eos: feature -> the id of the feature's EOS token; None if the feature has no EOS.
      document_eos: the id that is appended to each document before documents are joined, or None.
      first_sentinel: the id that replaces the first masked span of a segment. The ids that replace
        the following spans count down from `first_sentinel`. None if no span is masked.
      mode: the ids with which all inputs begin, such as those of UL2's mode tokens.
    """

    selector: str
    parameters: Mapping[str, float]
    segment_tokens: Tokens
    eos: Mapping[str, Count | None]
    document_eos: Count | None = None
    first_sentinel: Count | None = None
    mode: tuple[Count, ...] = ()


@dataclasses.dataclass(frozen=True)
class InstructionSpec:
    """The parameters that turn cached records of an instruction task into training examples.

    Attributes:
      positives: how many parts of a cached record hold positive demonstrations. Parts hold the
        name, the definition, the positive and the negative demonstrations, and the instance.
      longest_inputs: the maximum number of tokens of an input together with its positive and
        negative demonstrations, including EOS. Demonstrations that do not fit are dropped.
      eos: feature -> the id of the feature's EOS token; None if the feature has no EOS.
    """

    positives: Count
    longest_inputs: Count
    eos: Mapping[str, Count | None]


@dataclasses.dataclass(frozen=True)
class EosSpec:
    """The EOS that SeqIO appends to a task's cached records, if no other step follows the cache.

    Attributes:
      ids: feature -> the id of its EOS token. Other features have no EOS.
      after_trim: whether a sequence is truncated before EOS is appended, so that it always ends in
        EOS, as with SeqIO's `append_eos_after_trim`.
    """

    ids: Mapping[str, Count]
    after_trim: bool


@dataclasses.dataclass(frozen=True)
class RankTaskSpec:
    """The facts about a task that rank evaluation needs.

    Attributes:
      dataset: the dataset with its subset, as in results files.
      prompt: the prompt's name; "" if the task has no prompt.
      classes: the number of classes, once for each metric of the task that is T5's rank
        classification. The number is None if examples have different numbers of classes.
      other_metrics: the names of the metrics that are the user's own functions.
      rows: the dataset, subset and split that contain a prompted task's rows. If the cache does not
        have the documents of the rows, the documents are read from this split.
    """

    dataset: str
    prompt: str
    classes: tuple[int | None, ...] = ()
    other_metrics: tuple[str, ...] = ()
    rows: tuple[str, str | None, str] | None = None


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A task of the run's mixture.

    Attributes:
      name: the task's name in SeqIO's registry.
      rate: the mixing rate, relative to the mixing rates of the mixture's other tasks.
      features: name -> feature, in the order of `DataSpec.lengths`.
      examples: the number of examples in the split; None if unknown.
      cache_files: the TFRecord files of the split, in order. Empty if there is no cache. SeqIO then
        creates the examples while they are read.
      objective: the objective of a pretraining task, whose cache stores documents as "targets";
        None for other tasks.
      instructions: the parameters that turn the cached records of an instruction task into
        examples; None for other tasks. `t0.tasks.instruction_steps` describes the records.
      eos: the EOS that is appended to cached records; None if the records have it, or need none.
      rank: the facts that rank evaluation needs, if each cached record is one answer choice; None
        for other tasks. Such a record has the features "idx" [2], "inputs", "targets",
        "is_correct", and the texts "inputs_pretokenized" and "targets_pretokenized".
      choices: whether a training example has all of its answer choices. These are the records with
        the same first number in "idx".
    """

    name: str
    rate: NotNegative
    features: Mapping[str, FeatureSpec]
    examples: Count | None = None
    cache_files: tuple[str, ...] = ()
    objective: ObjectiveSpec | None = None
    instructions: InstructionSpec | None = None
    eos: EosSpec | None = None
    rank: RankTaskSpec | None = None
    choices: bool = False


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """The data that a run reads, and how to make batches from it.

    Attributes:
      mixture: the name of the mixture or task in SeqIO's registry.
      split: the split to read.
      tasks: the tasks of the mixture that have the split.
      lengths: feature -> the number of tokens in a row of the batch, inputs first.
      ends_in_eos: the features that end in EOS even if they are truncated to the row's length.
      pack: whether several examples are packed into one row.
      shuffle: whether to shuffle the examples.
      seed: the seed of all random choices in the data.
      window_rows: the number of rows whose examples are packed together.
      use_cached: whether to read the tasks' caches.
    """

    mixture: str
    split: str
    tasks: tuple[TaskSpec, ...]
    lengths: Mapping[str, Tokens]
    ends_in_eos: tuple[str, ...] = ()
    pack: bool = True
    shuffle: bool = True
    seed: Count = 0
    window_rows: Rows = 512
    use_cached: bool = False


@dataclasses.dataclass(frozen=True)
class ConfiguredSpec:
    """A function or class that gin configures, with its parameters.

    Attributes:
      selector: gin's full name, such as "mesh_tensorflow.optimize.AdafactorOptimizer".
      parameters: name -> value. If a value is a function or class, it is a mapping with these two
        fields, `selector` and `parameters`.
    """

    selector: str
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ChoiceLosses:
    """The factors of T-Few's losses in the training loss; gin sets them as `choice_losses.NAME`.

    If a factor is not 0, each example is trained with all of its answer choices, and the loss is
    the weighted sum of these losses (Liu et al. 2022, section 3.2), averaged over the examples of
    the batch. The z-loss and label smoothing are not part of it.

    Attributes:
      likelihood: the factor of the right choice's cross entropy per token.
      unlikelihood: the factor of the mean of -log(1 - p) over all tokens of the wrong choices,
        where p is the probability of the token.
      length_normalized: the factor of the cross entropy over the choices, in which the score of a
        choice is its log-likelihood per token.
    """

    likelihood: NotNegative = 0.0
    unlikelihood: NotNegative = 0.0
    length_normalized: NotNegative = 0.0

    def __bool__(self) -> bool:
        return any(dataclasses.astuple(self))


BASES = ("full", "nf4", "int8")
NF4_BLOCK = 64  # the weights that share a scale, which is their largest absolute value


@dataclasses.dataclass(frozen=True)
class AdapterSpec:
    """A small set of weights that is trained instead of the model's weights; gin: `t0.adapter`.

    Attributes:
      method: "ia3" for (IA)3, which scales the outputs of projections, or the input of "wo"; "lora"
        for LoRA, which adds a product of two small matrices to projections.
      rank: the rank of LoRA's product.
      alpha: the factor of LoRA's product, which is also divided by `rank`.
      dropout: the dropout rate of the input of LoRA's product.
      projections: the adapted projections: "q", "k", "v", "o", "wo", and "wi" or, in T5 1.1, "wi_0"
        and "wi_1". If empty, they are k, v and wo for (IA)3, and q and v for LoRA.
      target_modules: the adapted modules, in place of `projections`, as in PEFT: a list of endings
        of Hugging Face's names, such as "SelfAttention.q", or a regular expression of whole names.
      exclude_modules: the modules among them that are not adapted, in the same form.
      layers_to_transform: the numbers of the adapted blocks of each stack; empty for all blocks.
      base: the type of the frozen projections: "full" for the type of activations, or "nf4" or
        "int8" for weights of 4 or 8 bits, quantized with bitsandbytes.
    """

    method: Literal["ia3", "lora"]
    rank: Positive = 8
    alpha: NotNegative = 16.0
    dropout: Annotated[float, Range(0, 0.99)] = 0.0
    projections: Sequence[str] = ()
    target_modules: Sequence[str] | str = ()
    exclude_modules: Sequence[str] | str = ()
    layers_to_transform: Sequence[Count] = ()
    base: Literal[BASES] = "full"


@dataclasses.dataclass(frozen=True)
class VocabularySpec:
    """A SentencePiece vocabulary.

    Attributes:
      file: the path of the SentencePiece model.
      size: the number of ids, including sentinels, before a model pads it.
      extra_ids: the number of sentinels.
    """

    file: str
    size: Positive
    extra_ids: Count


@dataclasses.dataclass(frozen=True)
class RankSpec:
    """A rank evaluation.

    Attributes:
      folder: the folder for results.
      checkpoint: the checkpoint to score; None for the checkpoints in the model directory.
      steps: the steps to evaluate: a step, a list of steps, "all", or None for the latest step.
      settings: the parameters of `score_eval`.
      reading: the parameters of `mesh_eval_dataset_fn` that select the records of a task, with the
        values bound in gin.
      vocabulary: the description of the targets' vocabulary for results files.
      given: the settings of mode "eval" that differ from their defaults, such as "examples" (the
        maximum number of examples of each task), and the seed of the sample of these examples.
    """

    folder: str
    checkpoint: str | None
    steps: Any
    settings: Mapping[str, Any]
    reading: Mapping[str, Any]
    vocabulary: Mapping[str, Any]
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class JobSpec:
    """A source of inputs, and the file to which their predictions are written.

    Attributes:
      path: the path of the predictions, with {step} for the checkpoint's step.
      as_json: whether the predictions are JSON Lines; if not, the file has one text per line.
      settings: the parameters of `t0.infer`.
      limits: the parameters of `t0.inference.inputs.LengthLimits`, in tokens.
      split: the split of a task.
      task: the task whose cache is read; None to read an input file.
      input_file: the file of inputs; None if there is a task.
      add_eos: whether the inputs of `input_file` end in EOS.
      repeats: the number of times to repeat each input of `input_file`.
      first: the number of examples to use from the start of the task; None to use all examples.
      examples: the maximum size of a random sample of these examples; None to use all of them.
      hides_targets: whether the task's split has rows without labels. If so, the targets in the
        cache may be placeholders, so the predictions file leaves them out.
      vocabulary: the SentencePiece model that tokenizes the inputs of `input_file`.
    """

    path: str
    as_json: bool
    settings: Mapping[str, Any]
    limits: Mapping[str, Any]
    split: str = ""
    task: TaskSpec | None = None
    input_file: str | None = None
    add_eos: bool = False
    repeats: Positive = 1
    first: Positive | None = None
    examples: Count | None = None
    hides_targets: bool = False
    vocabulary: str = ""


@dataclasses.dataclass(frozen=True)
class InferSpec:
    """The predictions that a run makes by decoding.

    Attributes:
      checkpoint: the checkpoint to predict with; None for the checkpoints in the model directory.
      steps: the steps to predict with: a step, a list of steps, "all", or None for the latest step.
      vocabulary_sha256: the hash of the SentencePiece model of the inputs.
      jobs: the sources of inputs.
    """

    checkpoint: str | None
    steps: Any
    vocabulary_sha256: str | None
    jobs: tuple[JobSpec, ...]

    @property
    def folder(self) -> str:
        """The folder of the predictions."""
        return posixpath.dirname(self.jobs[0].path)


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """The specification of a run.

    Attributes:
      mode: the value of `run.mode`: "train", "score_eval", ...
      model_dir: the folder for checkpoints, metrics and results.
      model: the model.
      inputs_vocabulary: the vocabulary of the inputs.
      targets_vocabulary: the vocabulary of the targets.
      lengths: feature -> the number of tokens in a row of the batch; None if the data determines
        the lengths.
      batch_sequences: the number of sequences in the global batch.
      microbatches: the number of parts into which a replica's batch is divided. The replica
        computes the parts one after the other.
      train_steps: the step at which training stops, counted from the start of pretraining.
      seed: the seed of initial weights and dropout.
      optimizer: the optimizer; None if the run does not train.
      schedule: the learning rate schedule, or a constant learning rate.
      schedule_steps: the number of steps that the schedule covers.
      clip_gradient_norm: the maximum global gradient norm, or None.
      variable_filter: a regular expression for the variables to train, or the name of a function
        that selects them; None to train all variables.
      init_checkpoint: the checkpoint to start from, or None.
      init_variable_filter: a regular expression for the variables to read from `init_checkpoint`;
        "" to read all variables.
      save_checkpoints_steps: the number of steps between checkpoints.
      keep_checkpoint_max: the number of newest checkpoints to keep; None or 0 to keep all.
      keep_checkpoints: the rules for keeping older checkpoints, with gin's parameter names.
      training: the other parameters of the training loop, with gin's names.
      choice_losses: the factors of the losses over answer choices. If all are 0, the loss is the
        cross entropy of the targets.
      data: the data that the run reads; None if it reads no mixture.
      validation: the data on which training measures the held-out loss, or None.
      rank: the rank evaluation; None in modes without rank evaluation.
      infer: the predictions to make; None in modes other than "infer" and "eval". In mode "eval",
        these are the predictions for the tasks that are evaluated by decoding.
      judge: the words of the t5_mesh_transformer command that evaluates the decoded texts.
      records: name -> text of the files in the model directory that describe a training run.
      adapter: the adapter that is trained; None to train the model itself.
      eval_words: the flags with which `t0 eval` reads the data of a training run.
      schema: the version of the format of this specification.
    """

    mode: str
    model_dir: str
    model: ModelSpec
    inputs_vocabulary: VocabularySpec
    targets_vocabulary: VocabularySpec
    lengths: Mapping[str, Tokens] | None
    batch_sequences: Annotated[int, Range(0, 2**20)]
    microbatches: Annotated[int, Range(0, 2**20)] = 1
    train_steps: Count = 0
    seed: Count = 0
    optimizer: ConfiguredSpec | None = None
    schedule: ConfiguredSpec | float | None = None
    schedule_steps: Count = 0
    clip_gradient_norm: NotNegative | None = None
    variable_filter: str | None = None
    init_checkpoint: str | None = None
    init_variable_filter: str = ""
    save_checkpoints_steps: Count | None = None
    keep_checkpoint_max: Count | None = None
    keep_checkpoints: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    choice_losses: ChoiceLosses = ChoiceLosses()
    data: DataSpec | None = None
    validation: DataSpec | None = None
    rank: RankSpec | None = None
    infer: InferSpec | None = None
    judge: tuple[str, ...] = ()
    records: Mapping[str, str] = dataclasses.field(default_factory=dict)
    adapter: AdapterSpec | None = None
    eval_words: tuple[str, ...] = ()
    schema: int = SCHEMA


def from_json(text: str, kind: type[Record]) -> Record:
    """Parses the output of `plain_data.to_json`.

    Args:
      text: the JSON text.
      kind: the dataclass of the specification, or of a part of it.

    Raises:
      UserError: the text is not JSON, or a field is missing, unknown or of a wrong type.
    """
    try:
        value = parsed_json(text)
    except ValueError as error:
        raise UserError(f"the run specification is not JSON: {error}") from error
    if half := find_lone_surrogate(value):
        raise UserError(
            f"the run specification has half of a surrogate pair, in {half!r:.80}, which is not "
            "valid text"
        )
    if kind is RunSpec and isinstance(value, Mapping):
        value = _upgrade(value)
    return read_value(value, kind, kind.__name__)


def _upgrade(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a specification in the current schema."""
    schema = value.get("schema", SCHEMA)
    if schema == SCHEMA:
        return value
    if schema != 1 or isinstance(schema, bool):
        raise UserError(
            f"the run specification has schema {schema!r:.40}, and this version reads 1 and "
            f"{SCHEMA}. Write it again with t5_mesh_transformer --save_spec"
        )
    model = t5_layers.model_of_schema_1(value.get("model"))
    return {**value, "model": model, "schema": SCHEMA}


def read_value(value: Any, kind: type[Record], location: str) -> Record:
    """Converts a part of a specification to the type `kind`.

    This function works like `read_plain`, but raises a UserError instead of a ValueError.

    Args:
      value: plain data, as in JSON.
      kind: the type, such as a dataclass.
      location: the name of the value, for messages.

    Raises:
      UserError: the value has a wrong type or is out of range.
    """
    try:
        return read_plain(value, kind, location)
    except ValueError as error:
        raise UserError(f"the run specification's {error}") from error

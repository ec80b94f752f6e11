"""Builds the files that describe a run in its model directory, for an engine that has no gin.

    records = training_records(arguments)      # after `run_arguments.read`
    records["operative_config.gin"]            # the text that our TensorFlow loop would write

Gin's operative config only contains the parameters of functions that have been called. Therefore
this module builds a training step, but does not lower or run this step.
"""

from collections.abc import Mapping
from typing import Any

from t0.config import saved_config
from t0.config.bindings import is_configured
from t0.feeding import data_spec
from t0.mesh.devices import activation_dtype
from t0.mesh.gather_embedding import bind_gather_embedding
from t0.tasks.prompted_tasks import prompts_of_mixture
from t0.training import checkpointing, graph, model_directory
from t0.training.checkpointing import Keep
from t0.training.graph import TrainingSpec
from t0.training.mesh_session import LoopOptions


def training_records(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Returns file name -> text, for the configured training run.

    Args:
      arguments: the result of `run_arguments.read`.
    """
    spec = TrainingSpec.from_estimator_arguments(**arguments)
    options = LoopOptions(arguments["train_steps"])
    data = data_spec.open_dataset_function(
        arguments["train_dataset_fn"],
        options.seed,
        sequence_length=spec.sequence_length,
        vocabulary=spec.vocabulary,
        dataset_split=arguments["dataset_split"],
    )
    bind_gather_embedding(spec.mesh_shape, spec.layout_rules)
    graph.call_step(
        spec,
        features=data.features,
        seed=options.seed,
        activations=activation_dtype(options.activation_dtype),
    )
    Keep(spec.keep_checkpoint_max)
    if is_configured("t0.adapter"):
        checkpointing.Adapter()
    prompts = data.spec and prompts_of_mixture(data.spec.mixture, data.spec.lengths)
    return {
        **({model_directory.PROMPTS_FILE: prompts.to_json()} if prompts else {}),
        **saved_config.operative_texts(),
        model_directory.CONFIGURATION_FILE: model_directory.configuration_text(
            checkpointing.configuration()
        ),
    }

"""Trains models with Mesh TensorFlow: in our own loop, or on a TPU with TensorFlow's estimator.

    from t0.training import mesh_session
    from t0.training.graph import TrainingSpec

    mesh_session.train(spec, LoopOptions(train_steps=12_200), train_dataset_fn)

mesh_session    trains with Mesh TensorFlow in one session
loop            the training loop that both engines share: steps, evaluation, checkpoints; the best
                evaluation, early stopping, the time limit, SIGTERM; the weights of tokens in a loss
                that is averaged over tokens or sequences
estimator       trains on a TPU with TensorFlow's estimator
graph           builds the training step in TensorFlow: model, gradients, optimizer; random numbers
                that depend only on seed and step
losses          cross entropy and z-loss in float32, and the sums over each batch that are recorded
optimizers      AdamW, momentum SGD and others; applies the updates of any optimizer; Mesh
                TensorFlow's Adafactor in fewer passes over the weights
schedules       learning rate schedules
checkpointing   writes and restores checkpoints; fills variables from another run's checkpoint
model_directory the lock, the configuration and the retained checkpoints of a model directory; the
                list of its variables, model-info.txt
resume_file     writes and reads the resume state next to a checkpoint
validation      measures the held-out loss and the task metrics during training
metric_values   the numeric values of a task's metrics, by name
recorder        prints the first lines of a run and its progress; writes metrics.jsonl and
                TensorBoard event files
trackers        starts a process that sends metrics.jsonl to an experiment tracker
export          writes the last checkpoint as a Hugging Face folder

Importing this package imports none of its modules. The modules that `t0.torch` imports do not import
TensorFlow, which a test of the import rules checks.
"""

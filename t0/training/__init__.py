"""Training: Mesh TensorFlow's models on this machine, exact to resume; on a TPU by its estimator.

    from t0.training import loop
    from t0.training.options import LoopOptions, TrainingSpec

    loop.train(spec, data, LoopOptions(train_steps=12_200))

loop            our loop: a session, its steps, what is due after each
estimator       training on a TPU, by TensorFlow's estimator
options         what is trained (`TrainingSpec`), and what the loop does besides (`LoopOptions`)
graph           the step as a TensorFlow graph: model, gradients, optimizer
losses          the loss in float32, and what is counted beside it
randomness      dropout and initial values by seed and step
optimizers      Adafactor, Adam and others in one pass; schedules: of the learning rate
checkpointing   a run's model directory: checkpoints, resume state, configuration
warm_start      variables from another run's checkpoint
evaluation      held-out loss and task metrics while training
stopping        the best evaluation, early stopping, hours, SIGTERM
recorder        lines of progress, metrics.jsonl, TensorBoard's events
export          the last checkpoint as a Hugging Face folder

Importing this package imports nothing; its modules import TensorFlow.
"""

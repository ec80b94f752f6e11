"""Suggests our parameter if the user gives a flag of another training program.

advise("learning_rate")      # "The learning rate is a gin parameter: --gin..."
advise("learning-rate")      # the same
advise("seeed")              # None
"""

# Advice -> the names that other programs use for the setting.
_GUESSES = {
    "The learning rate is a gin parameter of the schedule: "
    "--gin.constant_learning_rate.learning_rate=0.001": ("learning_rate", "lr", "base_lr"),
    "The schedule is a gin file, such as --gin_file=learning_rate_schedules/constant_0_001.gin, or "
    "--gin.run.learning_rate_schedule=@t0.cosine_with_warmup": (
        *("lr_scheduler_type", "lr_scheduler", "scheduler", "learning_rate_schedule"),
    ),
    "Set --gin.t0.cosine_with_warmup.warmup_steps=1000 for that schedule": (
        *("warmup_steps", "num_warmup_steps", "warmup_ratio"),
    ),
    "Set sequences per step with --gin.BATCH_SIZE=16": (
        *("batch_size", "train_batch_size", "per_device_train_batch_size", "bs"),
    ),
    "Set the last step with --gin.TRAIN_STEPS=1000, or --finetune_steps=1000 after a checkpoint": (
        *("train_steps", "max_steps", "max_train_steps", "num_train_steps", "steps", "num_steps"),
    ),
    "Use --epochs=3": ("num_train_epochs", "num_epochs", "n_epochs", "epoch", "max_epochs"),
    "Use --model_dir=DIR": ("output_dir", "out_dir", "output", "save_dir", "workdir"),
    "Use --checkpoint=PATH": (
        *("model_name_or_path", "model", "model_name", "pretrained_model", "init_checkpoint"),
        *("weights", "load", "init_from"),
    ),
    "The same command resumes from the last checkpoint in --model_dir": (
        *("resume", "resume_from_checkpoint", "resume_from"),
    ),
    "Set tokens per text with --gin.TASK_FEATURE_LENGTHS=\"{'inputs': 512, 'targets': 64}\"": (
        *("max_length", "max_seq_length", "max_seq_len", "max_source_length", "max_target_length"),
        *("seq_length", "seq_len", "sequence_length"),
    ),
    "Name the data with --gin.MIXTURE_OR_TASK_NAME=\"'t0_train'\"": (
        *("mixture_or_task", "mixture", "task", "tasks", "task_name", "dataset", "dataset_name"),
    ),
    "Use --data_dir=DIR, a folder that `t0 init` writes": ("train_file", "train_data", "data"),
    "Use --vocab=FILE": ("tokenizer", "tokenizer_name", "vocab_file", "spm_model"),
    "Use --activation_dtype=bfloat16": ("bf16", "fp16", "dtype", "precision", "mixed_precision"),
    "To use less memory with identical results, set "
    "--gin.serialize_num_microbatches.tokens_per_microbatch_per_replica=2048": (
        *("gradient_accumulation_steps", "grad_accum", "accumulate_grad_batches", "microbatch"),
    ),
    "Set --gin.DROPOUT_RATE=0.1": ("dropout", "dropout_rate"),
    "The optimizer is a gin parameter: --gin.run.optimizer=@t0.AdamWOptimizer": (
        *("optimizer", "optim", "weight_decay", "adam_beta1", "adam_beta2"),
    ),
    "Set steps between checkpoints with --gin.run.save_checkpoints_steps=1000": (
        *("save_steps", "save_interval", "save_every", "save_freq"),
    ),
    "Set the number of latest checkpoints with --gin.run.keep_checkpoint_max=1": (
        *("save_total_limit", "keep_checkpoints"),
    ),
    "Set steps between log lines with --gin.train_loop.log_every_steps=10": (
        *("logging_steps", "log_interval", "log_every", "log_every_n_steps"),
    ),
    "Set steps between validations with --gin.EVAL_PERIOD=100": (
        *("eval_steps", "eval_interval", "eval_every", "evaluation_strategy", "val_interval"),
    ),
    "The device is chosen with --engine=torch --device=cuda, or with --tpu": (
        *("gpu", "gpus", "num_gpus", "device", "n_gpu"),
    ),
    "There is no such logger: `t0 report --metrics MODEL_DIR` plots runs, and TensorBoard reads "
    "their event files": ("report_to", "wandb", "use_wandb", "wandb_project", "logger"),
}
_ADVICE = {name: advice for advice, names in _GUESSES.items() for name in names}


def advise(name: str) -> str | None:
    """Returns advice on how to set here what other programs set with the flag `name`.

    Returns None if no other program is known to have such a flag.
    """
    return _ADVICE.get(name.replace("-", "_").lower())

"""Suggests our parameter if the user gives a flag of another training program.

advise("learning_rate")      # "The learning rate is a gin parameter: --gin..."
advise("learning-rate")      # the same
advise("seeed")              # None
"""

# The names under which other programs have a setting -> advice.
_GUESSES = {
    "learning_rate lr base_lr": "The learning rate is a gin parameter of the schedule: "
    "--gin.constant_learning_rate.learning_rate=0.001",
    "lr_scheduler_type lr_scheduler scheduler": "The schedule is a gin file, such as "
    "--gin_file=learning_rate_schedules/constant_0_001.gin, or "
    "--gin.run.learning_rate_schedule=@t0.cosine_with_warmup",
    "warmup_steps num_warmup_steps warmup_ratio": "Set "
    "--gin.t0.cosine_with_warmup.warmup_steps=1000 for that schedule",
    "batch_size train_batch_size per_device_train_batch_size": "Set sequences per step with "
    "--gin.BATCH_SIZE=16",
    "train_steps max_steps max_train_steps num_train_steps steps": "Set the last step with "
    "--gin.TRAIN_STEPS=1000, or --finetune_steps=1000 after a checkpoint",
    "num_train_epochs num_epochs max_epochs": "Use --epochs=3",
    "output_dir output save_dir": "Use --model_dir=DIR",
    "model_name_or_path model model_name init_checkpoint": "Use --checkpoint=PATH",
    "resume resume_from_checkpoint": "The same command resumes from the last checkpoint in "
    "--model_dir",
    "max_length max_seq_length max_source_length max_target_length seq_length": "Set tokens per "
    "text with --gin.TASK_FEATURE_LENGTHS=\"{'inputs': 512, 'targets': 64}\"",
    "mixture task tasks task_name dataset dataset_name": "Name the data with "
    "--gin.MIXTURE_OR_TASK_NAME=\"'t0_train'\"",
    "train_file train_data data": "Use --data_dir=DIR, a folder that `t0 init` writes",
    "tokenizer tokenizer_name vocab_file": "Use --vocab=FILE",
    "bf16 fp16 dtype precision mixed_precision": "Use --activation_dtype=bfloat16",
    "gradient_accumulation_steps grad_accum": "To use less memory with identical results, set "
    "--gin.serialize_num_microbatches.tokens_per_microbatch_per_replica=2048",
    "dropout dropout_rate": "Set --gin.DROPOUT_RATE=0.1",
    "optimizer optim weight_decay": "The optimizer is a gin parameter: "
    "--gin.run.optimizer=@t0.AdamWOptimizer",
    "save_steps save_interval": "Set steps between checkpoints with "
    "--gin.run.save_checkpoints_steps=1000",
    "save_total_limit": "Set the number of latest checkpoints with --gin.run.keep_checkpoint_max=1",
    "logging_steps log_interval": "Set steps between log lines with "
    "--gin.train_loop.log_every_steps=10",
    "eval_steps eval_interval": "Set steps between validations with --gin.EVAL_PERIOD=100",
    "gpu gpus num_gpus device": "The device is chosen with --engine=torch --device=cuda, or with "
    "--tpu",
    "report_to wandb": "There is no such logger: `t0 report --metrics MODEL_DIR` plots runs, and "
    "TensorBoard reads their event files",
}
_ADVICE = {name: advice for names, advice in _GUESSES.items() for name in names.split()}


def advise(name: str) -> str | None:
    """Returns advice on how to set here what other programs set with the flag `name`.

    Returns None if no other program is known to have such a flag.
    """
    return _ADVICE.get(name.replace("-", "_").lower())

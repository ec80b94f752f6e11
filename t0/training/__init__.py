"""Training: batches and a gin configuration in, checkpoints and metrics out."""

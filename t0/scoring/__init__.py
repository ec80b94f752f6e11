"""Rank evaluation: a checkpoint and prompted choices in, log-likelihoods and accuracies out."""

"""Feeding: from cached or live tasks to the batches that a model takes."""

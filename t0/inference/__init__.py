"""Inference: a checkpoint and inputs in, predictions out. Importing it registers `t0.infer`."""

from t0.inference.settings import Settings

__all__ = ["Settings"]

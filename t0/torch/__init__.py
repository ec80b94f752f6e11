"""The PyTorch engine: runs a specification on CPUs or GPUs, in one or several processes.

    torchrun --nproc_per_node=8 -m t0.torch spec.json

This package does not import TensorFlow or SeqIO. It imports gin only to check the gin file of an
export. A test checks these imports. Weights, the optimizer's state and batches are the same as in
Mesh TensorFlow, so a run can move from one engine to the other.
"""

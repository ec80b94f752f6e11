"""The PyTorch engine: a run specification carried out on CPUs or GPUs, by one process or many.

    torchrun --nproc_per_node=8 -m t0.torch spec.json

Nothing in this room imports TensorFlow, SeqIO or, but to check the gin file of an export, gin; a
test checks that. Weights, the optimizer's
state and batches are Mesh TensorFlow's, so that a run can go from one engine to the other.
"""

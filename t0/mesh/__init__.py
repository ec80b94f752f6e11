"""Splits a run over devices, and plans the memory and time that the run needs on a TPU slice.

For a run on this machine:
    devices            the mesh of this machine's devices; the type of activations; batch checks
    fused              attention, GELU and RMS norms in fewer passes over memory; XLA on CPUs
    gather_embedding   embeddings and target log-probabilities by a gather, without one-hot matrices

For the model:
    t5_model           the numbers of a T5 that Mesh TensorFlow has built

For `t0 plan`, without a TPU:
    topology           slices by name: chips, cores, hosts, memory, links; a device assignment
    pod_run            PodRun: the settings that gin configures for a run on a slice; their checks
    lowering           the program of one core, which `lower` builds and `read_program` reads
    liveness           peak_memory: the peak memory of a program
    formulas           parameters, memory and FLOPs of a T5 step; no TensorFlow
    costs              StepCosts: bytes, FLOPs, collectives, from formulas or a lowered program
    plan               plan_configured_run: the plan as one JSON object; sweep: many plans, ranked

Importing this package imports none of its modules, because most of them need TensorFlow.
"""

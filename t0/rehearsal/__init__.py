"""A pod's own program, run on this machine: each core of a TPU slice as a copy in one graph.

    virtual_cores   copy_program: a core's lowered program, once for each core of the slice
    collectives     sums and exchanges between cores, as operations over the copies
    groups          group_faults: which cores each collective joins, on a slice of any size
    virtual_pod     VirtualPod: the copies in a session; initialises, trains, reads variables
    one_device      OneDevice: the same steps by our own loop on one device
    comparing       compare_training: both side by side, and whether they agree
    differences     variable_pairs: how far weights and gradients differ
    draws           draws_by_place: dropout that two programs share
    saving          save_and_restore: a checkpoint by the pod's saver, read by both sides
    reading_cores   ReadingCores: the cores' programs that restore a checkpoint and train nothing
    ranking         rank: choices scored by the pod's scoring program and by our scorer
    measuring       measure: perplexity by the pod's program and by our measuring
    feeding         fed: what each core gets, by TPUEstimator's own operations
    configured_data the run's own mixture, as TPUEstimator would be given it
    batches         packed batches and answer choices of random tokens
    shrinking       shrink: the configured run with a model that fits this machine
    memory_needed   check_memory: whether this machine has the memory
    rehearse        all of it as `t0 rehearse` shows it

Importing this package imports none of them: they need TensorFlow.
"""

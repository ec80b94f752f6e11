"""A pod's own program, run on this machine: each core of a TPU slice as a copy in one graph.

    rehearse        the rehearsal as `t0 rehearse` shows it: shrinks the run, checks the memory
    feeding         the batches of each core, by TPUEstimator's own operations
    virtual_cores   copy_program: a core's lowered program, once for each core of the slice
    virtual_pod     VirtualPod: the copies in a session; initialises, trains, reads variables
    one_device      OneDevice: the same steps, scores and perplexity by our own code on one device
    comparing       compare_training: runs both, and finds where they disagree

Importing this package imports none of them: they need TensorFlow.
"""

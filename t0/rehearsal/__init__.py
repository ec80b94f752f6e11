"""Rehearses a run on a TPU pod on this machine, with a copy of the program for each core.

rehearse        runs `t0 rehearse`: shrinks the run, prints the comparison
feeding         reads the batches of each core from TPUEstimator's own operations
virtual_cores   copy_program: copies a core's lowered program for each core of the slice
virtual_pod     VirtualPod: runs the copies in a session; initializes, trains, reads variables
one_device      OneDevice: runs the same steps, scoring and perplexity with our code on one device
restarting      stops a pod's program, restarts it, and hashes the batches of its cores
comparing       compare_training: runs VirtualPod and OneDevice, and reports where they disagree

In this package, the pod is the TPU slice of the run.

Importing this package imports none of its modules, because they need TensorFlow.
"""

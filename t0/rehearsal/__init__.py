"""Rehearses a pod run on this machine, in one graph with a copy of each TPU core's program.

rehearse        runs `t0 rehearse`: shrinks the run, checks the memory, prints the comparison
feeding         the batches of each core, from TPUEstimator's own operations
virtual_cores   copy_program: copies a core's lowered program for each core of the slice
virtual_pod     VirtualPod: runs the copies in a session; initializes, trains, reads variables
one_device      OneDevice: the same steps, scores and perplexity with our own code on one device
restarting      stops a pod's program, restarts it, and hashes the batches of its cores
comparing       compare_training: runs both, and reports where they disagree

Importing this package imports none of its modules: they need TensorFlow.
"""

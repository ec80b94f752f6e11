"""Reads the configuration of a run from gin files and flags, and makes a run specification.

    flags             defines the flags of t5_mesh_transformer, and which modes read each flag
    parse             parses gin files strictly; finds where bindings were set, and unset macros
    gin_files         finds gin files in the search path
    statements        reads the statements of gin files and their locations
    common_guesses    suggests our parameter for a flag of another training program
    t5x_names         translates T5X's gin statements into ours
    early_checks      checks gin files before TensorFlow is imported
    bindings          finds the value bound to a parameter: `bound("run.mode")`
    explain           turns gin's errors into sentences that suggest similar names
    masking           masks credentials in the files that a run saves
    operative         splits the operative config into a file for stock T5 and a file with our names
    listing           lists the configuration as text, for `--dry_run`
    specification     describes a run as plain data
    starter_settings  reads the settings in a starter folder of `t0 init`

Importing this package, `flags`, `specification` or `starter_settings` does not import TensorFlow.
"""

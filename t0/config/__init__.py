"""Configuration: gin files, flags, and the run specification made from them.

    flags          the flags of t5_mesh_transformer, and the modes that read each flag
    parse          strict parsing of gin files; the origin of each binding; required macros
    common_guesses  our parameters for the flags of other training programs
    early_checks   checks of gin files before TensorFlow is imported
    bindings       the value bound to a parameter: `bound("run.mode")`
    explain        gin's errors as sentences that suggest similar names
    masking        masked credentials in the files that a run saves
    operative      the operative config as two files: one for stock T5, one with our names
    listing        the configuration as text, for `--dry_run`
    specification  a run as plain data
    starter_settings  what commands take from a starter folder of `t0 init`

Importing this package, `flags`, `specification` or `starter_settings` does not import TensorFlow.
"""

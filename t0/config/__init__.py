"""Configuration: gin files, flags, and the run specification made from them.

    flags          the command's flags: their table, their parsing, the modes that read each
    parse          reads gin files strictly; where each binding was written; required macros
    early_checks   checks gin files before TensorFlow is imported
    bindings       the value bound to a parameter: `bound("run.mode")`
    explain        turns gin's errors into sentences, with the nearest names
    masking        masks credentials in what a run saves
    operative      the operative config as two files: one that stock T5 reads, one with our names
    listing        the configuration as text, for `--dry_run`
    specification  a run as plain data

Importing this package, `flags` or `specification` imports no TensorFlow.
"""

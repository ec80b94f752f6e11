"""Configuration: what gin files and flags say, and the run specification made from them.

    flags          the command's flags: table, parsing, which mode reads which
    parse          reads gin files strictly; where each binding was written; what must be set
    bindings       what is bound: `bound("run.mode")`
    explain        what a gin error means, and the names that are nearest
    listing        the configuration as text, for `--dry_run`
    specification  a run as plain data

Importing this package, `flags` or `specification` imports no TensorFlow.
"""

"""Reads the configuration of a run from gin files and flags, and makes a run specification.

    flag_table        declares the flags of t5_mesh_transformer, and which modes read each flag
    flags             parses these flags, and checks that a run's mode reads them
    parse             parses gin files strictly; finds where bindings were set, and unset macros
    gin_files         finds gin files in the search path
    t5x_names         translates T5X's gin statements into ours
    bindings          finds the value bound to a parameter, and all arguments of a function
    gin_errors        turns gin's errors into sentences that suggest similar names
    saved_config      masks credentials in saved files, and splits the operative config
    dry_run           lists the configuration as text, for `--dry_run`
    specification     describes a run as plain data
    model_spec        describes a model as plain data: the numbers of a T5
    t5_layers         reads these numbers from a description of Mesh TensorFlow's layers
    plain_data        reads plain data into dataclasses; checks types and ranges
    plain_values      turns values that gin has bound into plain data
    starter_settings  reads the settings in a starter folder of `t0 init`

Importing this package, `flags`, `specification` or `starter_settings` does not import TensorFlow.
"""

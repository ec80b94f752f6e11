"""Renders a row with a prompt template to inputs, targets and answer choices (plain strings).

    path = template_file_path("super_glue", "rte")
    prompt = compile_template(read_template_file(path).templates[0], seed_name="my_task")
    prompt.example({"premise": "It rains.", "hypothesis": "It is wet.", "label": 0})

`templates` finds and reads template files. `separators` prepares rows, and `render` renders
them in Jinja's `environments`. `missing_values` prints nothing for missing values. `row_report`
counts the rows that are dropped or have no label. `few_shot` joins exemplars and an input under a
budget of tokens. This package reads no dataset and does not import TensorFlow.
"""

from t0.prompts.environments import LONGEST_PRINTED, whole_number
from t0.prompts.missing_values import is_missing
from t0.prompts.render import NO_LABEL, CompiledTemplate, Example, compile_template
from t0.prompts.row_report import RowReport
from t0.prompts.separators import PreparedRow, prepared, remove_hyphens
from t0.prompts.templates import (
    Template,
    TemplateFile,
    read_template_file,
    template_file_path,
    text_fields,
)

__all__ = [
    "LONGEST_PRINTED",
    "NO_LABEL",
    "CompiledTemplate",
    "Example",
    "PreparedRow",
    "RowReport",
    "Template",
    "TemplateFile",
    "compile_template",
    "is_missing",
    "prepared",
    "read_template_file",
    "remove_hyphens",
    "template_file_path",
    "text_fields",
    "whole_number",
]

"""Computes the measures of ranked answer choices, for results files and for reports.

| module | contents |
|---|---|
| `rank_measures` | `MEASURES`, the table of the values of a report; confusion matrix, accuracy, F1 |
| `calibration` | the agreement of confidence and accuracy |
| `choice_lengths` | predictions if log-likelihoods are divided by a length |

A new measure is a function and a row of `MEASURES`. It then has a column in `report.csv`,
`report.json` and, if it has a heading, in the table of means over classes. The modules only use
NumPy.
"""

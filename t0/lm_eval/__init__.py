"""Exports our prompts as tasks of lm-evaluation-harness.

    from t0.lm_eval import export

    export(tasks, "/out/harness", split="validation", group="t0_eval_score_eval")

`t0.reports.lm_eval_samples` reads the harness's results. Every export contains a copy of
`t0_prompts.py`, which the harness imports. No module of t0 imports `t0_prompts.py`.
"""

from t0.lm_eval.exported_tasks import export

__all__ = ["export"]

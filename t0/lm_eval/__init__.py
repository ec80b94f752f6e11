"""lm-evaluation-harness: our prompts as its tasks.

    from t0.lm_eval import export

    export(tasks, "/out/harness", split="validation", group="t0_eval_score_eval")

`t0.reports.lm_eval_samples` reads what the harness writes. `t0_prompts.py` is copied into every
export: the harness imports it, nothing of t0 does.
"""

from t0.lm_eval.exported_tasks import ExportedTasks, export

__all__ = ["ExportedTasks", "export"]

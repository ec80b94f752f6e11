"""lm-evaluation-harness: our prompts as its tasks, our results in its format.

    from t0.lm_eval import export, write_results

    export(tasks, "/out/harness", split="validation", group="t0_eval_score_eval")
    write_results([Path("eval/results_1000.json")], Path("eval/lm_eval"))

`t0.reports.lm_eval_samples` reads what the harness writes. `t0_prompts.py` is copied into every
export: the harness imports it, nothing of t0 does.
"""

from t0.lm_eval.exported_tasks import Exported, export
from t0.lm_eval.written_results import write_results

__all__ = ["Exported", "export", "write_results"]

"""Files: names that come from data are checked, and joined so that nothing leaves its folder.

checked_name("train", "split", "state.json")     # "train"
checked_name("../x", "split", "state.json")      # UserError
path_inside("/data/cache", "my_task")            # "/data/cache/my_task"
"""

from t0.files.names import checked_name, path_inside

__all__ = ["checked_name", "path_inside"]

"""Runs `python -m t0.torch`, whose command is `t0.cli.torch_run`."""

from t0.cli.torch_run import console_entry_point

if __name__ == "__main__":
    console_entry_point()

"""Runs the commands of both engines, and writes a hash of the batch of each step that they take.

    # In T0_HASHES.0, the hashes of process 0, a line for each step:
    torchrun --nproc_per_node=2 -m tests.torch.hashed_steps SPEC

`rehearse` keeps the folder that `t0 rehearse` removes at its end, with its checkpoint, manifest and
stream, as a TPU leaves them in a model directory.
"""

import contextlib
import hashlib
import os
import types


def hash_steps(engine):
    """Writes the hashes of the batches that an engine takes."""
    take = engine.take

    def take_and_hash(self, batch):
        digest = hashlib.sha256()
        for name in sorted(batch):
            digest.update(name.encode() + batch[name].tobytes())
        with open(f"{os.environ['T0_HASHES']}.{os.environ.get('RANK', 0)}", "a") as file:
            print(digest.hexdigest(), file=file)
        return take(self, batch)

    engine.take = take_and_hash


def train_mesh():
    from t0.cli.mesh_transformer import console_entry_point
    from t0.training.mesh_session import _Session

    hash_steps(_Session)
    return console_entry_point()


def rehearse():
    from t0.cli.main import main
    from t0.rehearsal import rehearse, restarting

    folder = os.environ["T0_MODEL_DIR"]
    kept = types.SimpleNamespace(TemporaryDirectory=lambda: contextlib.nullcontext(folder))
    rehearse.tempfile = restarting.tempfile = kept
    return main()


if __name__ == "__main__":
    from t0.cli.torch_run import console_entry_point
    from t0.torch.torch_session import TorchEngine

    hash_steps(TorchEngine)
    console_entry_point()

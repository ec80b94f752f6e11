"""Command lines of `t5_mesh_transformer` over the small world, and what it says of a mistake."""

LENGTHS = {"inputs": 96, "targets": 32}
COMMAND = "t5_mesh_transformer: "
# Half of a short run is building the graph, which grows with the layers.
ONE_LAYER = "--gin_param=num_layers = 1"
TWO_LAYERS = "--gin_param=num_layers = 2"
TRAIN = [
    "--gin_file=dataset.gin",
    "--gin_file=models/t5.1.1.tiny.gin",
    "--gin_param=MIXTURE_NAME = 'weather_train'",
    "--gin_param=run.train_steps = 4",
    "--gin_param=run.batch_size = 4",
    f"--gin_param=run.sequence_length = {LENGTHS}",
    "--gin_param=get_variable_dtype.master_dtype = 'float32'",
    "--gin_file=learning_rate_schedules/constant_0_001.gin",
    ONE_LAYER,
]
EVALUATE = ["--gin_file=dataset.gin", "--gin_file=models/t5.1.1.tiny.gin", ONE_LAYER]
EVALUATE += ["--gin_file=score_eval.gin", "--gin_param=MIXTURE_NAME = 'weather_eval'"]
EVALUATE += ["--gin_param=run.dataset_split = 'validation'"]


def message(done):
    """The one message of a command that ended as a user's mistake should."""
    assert done.status == 2, done.out + done.err
    assert "Traceback" not in done.err
    before, mark, text = done.err.partition(COMMAND)
    assert mark
    assert COMMAND not in text
    assert len(before.splitlines()) < 8, before
    assert "WARNING" not in before
    return " ".join(text.split())

import pytest


@pytest.fixture(params=["local", "remote"])
def root(request, tmp_path):
    """A folder of the machine, and one of TensorFlow's file systems, which stands for gs://."""
    if request.param == "local":
        return str(tmp_path)
    import tensorflow as tf

    folder = f"ram://{tmp_path.name}"
    tf.io.gfile.makedirs(folder)
    return folder

"""What the names of gin files mean."""

import pytest

from t0.config import gin_files


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["runs/t0pp_train.gin"], "mesh/v3-512.gin"),
        (["runs/t0pp_train.gin", "mesh/v4-64.gin"], None),
        (["models/t5.1.1.small.gin", "runs/t0_3b.gin"], "mesh/v3-128.gin"),
        (["dataset.gin", "no_such.gin"], None),
    ],
)
def test_gin_file_header_names_the_tpu_slice(files, found):
    assert gin_files.slice_of_header(files, []) == found


def test_gin_file_missing_companion_is_not_an_error(tmp_path, caplog):
    (tmp_path / "operative_config.gin").write_text("")
    name = str(tmp_path / "operative_config.gin")
    assert gin_files.resolved_names([name], []) == [name]
    assert not caplog.records

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from t0.errors import UserError
from t0.files import checked_name, path_inside

LEADING_OUT = ["", ".", "..", "../x", "../../x/train", "/etc/passwd", "a/b", "a\\b", "a\0b"]


@pytest.mark.parametrize("name", ["train", "test-r1", "2021.en", "_x", "a..b", "..."])
def test_file_name_valid_names_are_accepted(name):
    assert checked_name(name, "split", "x.json") == name


@pytest.mark.parametrize(
    "name", [*LEADING_OUT, "a b", "a\n", "né", "train*", "gs://b", None, 3, []]
)
def test_file_name_invalid_names_are_refused(name):
    with pytest.raises(UserError, match=r"^x\.json: .* cannot be the name of a split"):
        checked_name(name, "split", "x.json")


@pytest.mark.parametrize("folder", ["/cache", "gs://bucket/cache", "relative"])
def test_path_inside_joins_names(folder):
    assert path_inside(folder, "né task", "train.tfrecord") == f"{folder}/né task/train.tfrecord"


@pytest.mark.parametrize("name", LEADING_OUT)
def test_path_inside_refuses_to_leave_its_folder(name):
    for names in ([name], ["task", name], [name, "train"]):
        with pytest.raises(UserError, match="written elsewhere"):
            path_inside("/cache", *names)


@given(st.lists(st.text(alphabet="./\\a\0", max_size=6), min_size=1, max_size=3))
@example(["..", "a"])
def test_path_inside_result_is_always_in_the_folder(names):
    import os.path

    try:
        path = path_inside("/cache", *names)
    except UserError:
        return
    assert os.path.commonpath(["/cache", os.path.normpath(path)]) == "/cache"
    assert os.path.normpath(path) != "/cache"

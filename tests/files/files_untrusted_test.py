import sys
import time

import pytest

from t0.errors import UserError
from t0.files import untrusted
from t0.files.untrusted import (
    DEEPEST,
    LARGEST_YAML,
    SAFE_LOADER,
    check_buckets,
    parsed_json,
    read_yaml,
)

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))


@pytest.mark.parametrize("deep", ["[" * 10**5, "[" * 10**5 + "]" * 10**5, '{"a":' * 5000])
def test_untrusted_json_too_deep_is_a_value_error(deep):
    with pytest.raises(ValueError, match="nested more than 100|Expecting"):
        parsed_json(deep)


def test_untrusted_json_within_the_depth_limit_is_read():
    text = "[" * DEEPEST + "]" * DEEPEST
    assert parsed_json(text) == parsed_json(text.encode()) != []
    with pytest.raises(ValueError, match="nested more than 100"):
        parsed_json(f"[{text}]")
    assert len(parsed_json("[" + "[]," * 5000 + "[]]")) == 5001
    with pytest.raises(ValueError):
        parsed_json(b"\xff")
    with pytest.raises(ValueError, match="limit"):
        parsed_json("9" * 10**4)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, r":\d+: .*more than 200,000 values, with those of aliases"),
        ("a: &a [*a]", "more than 200,000 values"),
        ("[" * 10**5, ":1: .*nested more than 100 levels deep"),
        ("- " * 10**5, "nested more than 100 levels"),
        ("{a: " * 200 + "1" + "}" * 200, "nested more than 100 levels"),
        ("!!int x", "a value cannot be read"),
        ("2021-13-45", "a value cannot be read: month must be"),
        ("? [1]\n: 2", "unhashable key"),
        ("a: b: c", ":1: not a YAML file"),
        ("\x00", "not a YAML file"),
        ("!!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("9" * 10**4, "a value cannot be read: .*limit"),
    ],
)
def test_untrusted_yaml_hostile_is_refused_quickly_in_one_line(tmp_path, text, told):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    began = time.monotonic()
    with pytest.raises(UserError, match=told) as caught:
        read_yaml(path, SAFE_LOADER, count_values=True)
    assert time.monotonic() - began < 5
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_untrusted_yaml_too_large_or_absent_is_refused(tmp_path):
    path = tmp_path / "file.yaml"
    with pytest.raises(UserError, match="cannot be read"):
        read_yaml(path)
    with path.open("wb") as file:
        file.truncate(LARGEST_YAML + 1)
    with pytest.raises(UserError, match="has more than 16,777,216 bytes"):
        read_yaml(path)
    path.write_text("a: &x [1, 2]\nb: *x\nc: {<<: {d: 1}}\n")
    assert read_yaml(path) == {"a": [1, 2], "b": [1, 2], "c": {"d": 1}}


@pytest.mark.parametrize(
    "argv",
    [
        ["--cache_dirs=/a,gs://mine/cache"],
        ["--bucket", "gs://mine"],
        ["--gin_param=x = 'gs://mine/x'"],
    ],
)
def test_untrusted_data_may_name_the_buckets_of_the_command_line(monkeypatch, argv):
    monkeypatch.setattr(sys, "argv", ["t0", *argv])
    data = {"tasks": [{"cache_files": ("gs://mine/other/a.tfrecord",)}]}
    check_buckets(data, "/models/data_manifest.json", "")
    for other in ("gs://min/a", "gs://mine2/a", "gs://mine.b/a", "gs://mine-b/a", "s3://mine/a"):
        with pytest.raises(UserError, match=f"x.json names '{other}'.* add --bucket={other[:-2]}$"):
            check_buckets({"a": [other]}, "x.json", "add --bucket={bucket}")


def test_untrusted_data_may_name_its_own_bucket_and_the_published_vocabulary(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["t0"])
    check_buckets({"file": "gs://mine/a"}, "gs://mine/models/x.json", "")
    check_buckets(["gs://t5-data/vocabs/cc_all.32000/sentencepiece.model", "/a", None, 3], "x", "")
    check_buckets({"text": "see gs://mine/a, and https://example.org for more"}, "x", "")
    for path in ("gs://t5-data/vocabs/../a", "gs://t5-data/other", "gs://mine/a"):
        with pytest.raises(UserError, match="only the command line names buckets"):
            check_buckets({path: 1}, "x", "")
    monkeypatch.setattr(untrusted, "named_buckets", {"gs://mine/b"})
    check_buckets(["gs://mine/a"], "x", "")

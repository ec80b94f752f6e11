import shlex

import gin
import pytest

from t0.errors import UserError
from t0.feeding import data_spec
from t0.files import tfrecord

import seqio  # isort: skip (after t0.feeding, which mends what seqio imports)


@pytest.fixture(autouse=True)
def tasks(clean_registries, tmp_path, monkeypatch):
    """Tasks `kind_one` (cached) and `kind_two` (not), mixtures `kinds` and `k+`."""
    source = seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"])
    features = {"targets": seqio.Feature(seqio.ByteVocabulary())}
    for name in ("kind_one", "kind_two"):
        preprocessors = [seqio.CacheDatasetPlaceholder()]
        seqio.TaskRegistry.add(
            name, source=source, preprocessors=preprocessors, output_features=features
        )
    seqio.MixtureRegistry.add("kinds", [("kind_one", 1), ("kind_two", 1)])
    seqio.MixtureRegistry.add("k+", [("kind_one", 1)])
    (tmp_path / "kind_one").mkdir()
    (tmp_path / "kind_one" / "COMPLETED").touch()
    seqio.set_global_cache_dirs([str(tmp_path)])
    yield
    seqio.set_global_cache_dirs([])


def test_unknown_mixture_error_offers_nearest_names():
    assert data_spec.known_mixture("kinds").name == "kinds"
    assert data_spec.known_mixture("kind_two").name == "kind_two"
    with pytest.raises(UserError, match="unknown mixture or task 'kinda'.*mean 'kinds'.*t0 tasks"):
        data_spec.known_mixture("kinda")


def test_vocabulary_with_other_pad_or_eos_ids_is_refused():
    other = {"targets": seqio.Feature(seqio.PassThroughVocabulary(100, eos_id=2))}
    source = seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"])
    seqio.TaskRegistry.add("other", source=source, preprocessors=[], output_features=other)
    seqio.MixtureRegistry.add("others", [("other", 1)])
    for name in ("other", "others"):
        with pytest.raises(UserError, match=f"task {name}: .* as ids 0 and 2; T5 needs 0 and 1"):
            data_spec.known_mixture(name)


def require(name, **settings):
    data_spec.require_cached(name, function="mesh_train_dataset_fn", settings=settings)


def test_uncached_task_error_has_the_caching_command(tmp_path):
    require("kind_one")
    require("k+")
    with pytest.raises(UserError) as caught:
        require("kinds", module_import=["my.tasks"], vocab=["/v/my model"])
    message = str(caught.value)
    assert "1 of the 2 tasks of kinds are not cached, such as 'kind_two'" in message
    assert f"(looked in: {tmp_path})" in message
    assert (
        f"\n  seqio_cache_tasks --tasks=kinds --output_cache_dir={tmp_path} "
        "--module_import=my.tasks '--vocab=/v/my model'\n" in message
    )
    assert "mesh_train_dataset_fn.use_cached = False" in message


@pytest.mark.parametrize(
    ("name", "is_cached"), [("kind_one", True), ("k+", True), ("kinds", False)]
)
def test_unread_cache_is_named_in_a_note(name, is_cached, tmp_path):
    line = data_spec.unread_caches(name, function="mesh_train_dataset_fn")
    wanted = (
        f"{name} is cached in {tmp_path}, and the cache is not read. To read it: "
        "--gin_param='mesh_train_dataset_fn.use_cached = True'"
    )
    assert line == (wanted if is_cached else None)


def test_caching_command_has_gin_parameters_of_instructions(empty_gin):
    gin.parse_config(["sni.seed = 3", "sni.instances_per_task = None"])
    words = shlex.split(data_spec.caching_command("sni_def", "/cache", {}))
    assert words[3:] == ["--gin_param=sni.instances_per_task=None", "--gin_param=sni.seed=3"]


def test_missing_cache_folder_error_names_the_flag():
    seqio.set_global_cache_dirs([])
    with pytest.raises(UserError, match="no folder was given.*\n.*=DIR\n.*additional_task_cache"):
        require("kinds")


def test_missing_split_of_mixture_is_refused():
    data_spec.require_split("kinds", "train")
    with pytest.raises(UserError, match="no task of kinds has a split 'dev'; there are: train"):
        data_spec.require_split("kinds", "dev")


def test_damaged_cache_error_names_task_and_file(tmp_path):
    cache = tmp_path / "kind_one"
    (cache / "info.train.json").write_text('{"num_shards": 2}')
    first = cache / "train.tfrecord-00000-of-00002"
    first.write_bytes(tfrecord.framed(b"one") + tfrecord.framed(b"two"))
    with pytest.raises(UserError) as caught:
        data_spec.require_whole("kinds", "train")
    assert str(caught.value) == (
        f"the cache of task kind_one: {cache}/train.tfrecord-00001-of-00002: missing. Copy or "
        f"cache it again. To find all damage, use: t0 verify {cache}"
    )
    data_spec.require_whole("kinds", "validation")
    (cache / "train.tfrecord-00001-of-00002").write_bytes(first.read_bytes())
    data_spec.require_whole("k+", "train", contents=True)
    first.write_bytes(first.read_bytes()[:-1])
    data_spec.require_whole("k+", "train")  # the records are not read
    with pytest.raises(UserError, match="task kind_one: .*-00000-of-00002: .*within record 1"):
        data_spec.require_whole("k+", "train", contents=True)


@pytest.mark.parametrize("content", ["", "[", "[" * 10**5, "{}", '{"num_shards": -1}', "[1]"])
def test_damaged_cache_info_file_is_named(tmp_path, content):
    path = tmp_path / "kind_one" / "info.train.json"
    path.write_text(content)
    with pytest.raises(UserError, match=f"the cache's {path} .* t0 verify {path.parent}$"):
        data_spec.cache_files(seqio.TaskRegistry.get("kind_one"), "train")
    with pytest.raises(UserError, match=f"task kind_one: {path}: damaged"):
        data_spec.require_whole("kinds", "train")


def test_unknown_mixture_error_names_module_to_import(clean_registries):
    import seqio

    seqio.TaskRegistry._REGISTRY.clear()
    seqio.MixtureRegistry._REGISTRY.clear()
    for name in ("t0_train", "super_glue_cb_can_we_infer_score_eval"):
        with pytest.raises(UserError, match=f"'{name}' is registered by t0.seqio_tasks.*--module_"):
            data_spec.known_mixture(name)
    with pytest.raises(UserError, match="unknown mixture or task 't0_trainn'"):
        data_spec.known_mixture("t0_trainn")

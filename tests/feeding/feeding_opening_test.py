import pytest

from t0.errors import UserError
from t0.feeding import opening

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


def test_nearest_names_are_offered():
    assert opening.known_mixture("kinds").name == "kinds"
    assert opening.known_mixture("kind_two").name == "kind_two"
    with pytest.raises(UserError, match="unknown mixture or task 'kinda'.*mean 'kinds'.*t0 tasks"):
        opening.known_mixture("kinda")


@pytest.mark.parametrize("kind", opening.RECIPES)
def test_folder_that_would_make_a_task_is_named(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
    with pytest.raises(UserError, match=rf"made of a folder {kind}/ in .*: {tmp_path}$"):
        opening.known_mixture(f"{kind}_en_de")


def test_every_recipe_has_its_folder_named():
    from seqio_tasks import recipes

    assert tuple(recipes.KINDS) == opening.RECIPES


def require(name, **settings):
    opening.require_cached(name, function="mesh_train_dataset_fn", settings=settings)


def test_uncached_task_comes_with_the_command_that_caches_it(tmp_path):
    require("kind_one")
    require("k+")
    with pytest.raises(UserError) as caught:
        require("kinds", module_import=["my.tasks"], vocab=["/v/my model"])
    message = str(caught.value)
    assert "1 of the 2 tasks of kinds are not cached, the first 'kind_two'" in message
    assert f"(looked in: {tmp_path})" in message
    assert (
        f"\n  seqio_cache_tasks --tasks=kinds --output_cache_dir={tmp_path} "
        "--module_import=my.tasks '--vocab=/v/my model'\n" in message
    )
    assert "mesh_train_dataset_fn.use_cached = False" in message


def test_without_a_cache_folder_one_is_to_be_named():
    seqio.set_global_cache_dirs([])
    with pytest.raises(UserError, match="no folder was given.*\n.*=DIR\n.*additional_task_cache"):
        require("kinds")


def test_split_that_no_task_has():
    opening.require_split("kinds", "train")
    with pytest.raises(UserError, match="no task of kinds has a split 'dev'; there are: train"):
        opening.require_split("kinds", "dev")

"""The 971 tasks and 8 mixtures of the original: names, members and rates, letter for letter."""

import difflib
import hashlib

import pytest

from t0.catalogue.entries import datasets, exclusions
from t0.catalogue.listing import RULES
from tests.catalogue import pinned_catalogue

TASKS = 971
MEMBERS = {
    "t0_train": 313,
    "t0+_train": 392,
    "t0++_train": 464,
    "t0_eval_score_eval": 116,
    "t0_train_score_eval": 87,
    "t0_train_one_og_prompt": 35,
    "t0_train_all_og_prompts": 222,
    "bias_fairness_eval_score_eval": 16,
}
# Of the files in pinned/, so that they do not change along with the catalogue unseen.
SHA256 = {
    pinned_catalogue.TASKS: "5a439deb8aede6b4258fa745f8e77f5f5055e89cee2bd1777bd88bddf165ce67",
    pinned_catalogue.MIXTURES: "01aeb8d1480cb271d7960dfff37d701c6129ca9fc4a71c65ab525a228e651ec5",
}


def assert_pinned(lines, path):
    pinned = path.read_text(encoding="utf-8").splitlines()
    if lines == pinned:
        return
    changes = difflib.unified_diff(pinned, lines, "pinned", "registered", n=0, lineterm="")
    shown = [line for line in changes if not line.startswith("@@")]
    more = [f"... and {len(shown) - 40} more"] if len(shown) > 40 else []
    pytest.fail(f"{path.name} differs:\n" + "\n".join(shown[:40] + more), pytrace=False)


def test_catalogue_tasks_equal_the_original(catalogue):
    lines = pinned_catalogue.task_lines()
    assert_pinned(lines, pinned_catalogue.TASKS)
    assert len(lines) == TASKS


def test_catalogue_mixtures_and_mixing_rates_equal_the_original(catalogue):
    lines = pinned_catalogue.mixture_lines()
    assert_pinned(lines, pinned_catalogue.MIXTURES)
    counts = {name: sum(line.startswith(f"{name},") for line in lines) for name in MEMBERS}
    assert counts == MEMBERS
    assert sum(MEMBERS.values()) == len(lines) - 1


@pytest.mark.parametrize("path", SHA256, ids=lambda path: path.name)
def test_catalogue_pinned_files_have_compared_checksums(path):
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256[path]


def test_catalogue_difference_is_shown_line_by_line(tmp_path):
    path = tmp_path / "tasks.txt"
    path.write_text("one\ntwo\n")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)tasks.txt differs:.*-two\n\+three"):
        assert_pinned(["one", "three"], path)


def test_catalogue_task_parts_equal_the_original(catalogue):
    import seqio
    import tensorflow as tf

    for name in seqio.TaskRegistry.names():
        task = seqio.TaskRegistry.get(name)
        scored = name.endswith("_score_eval")
        features = task.output_features
        assert list(features) == ["inputs", "targets"], name
        assert [feature.add_eos for feature in features.values()] == [False, True], name
        assert all(feature.dtype == tf.int32 for feature in features.values()), name
        assert len(task.preprocessors) == (4 if scored else 3), name
        assert isinstance(task.preprocessors[-1], seqio.CacheDatasetPlaceholder), name
        assert not task.requires_caching, name
        assert all(task.num_input_examples(split) > 0 for split in task.splits), name
        if scored:
            assert [metric.__name__ for metric in task.metric_fns] == ["rank_classification"], name


def test_mixing_rates_of_the_catalogue_rules(catalogue):
    import seqio

    # Over 500,000 rows: shared among all 9 templates, also where only one of them is a member.
    amazon = "amazon_polarity_Is_this_product_review_positive"
    train = seqio.MixtureRegistry.get("t0_train")
    assert train.get_rate(seqio.TaskRegistry.get(amazon)) == 500_000 // 9
    one = seqio.MixtureRegistry.get("t0_train_one_og_prompt")
    assert amazon in [task.name for task in one.tasks]
    assert one.get_rate(seqio.TaskRegistry.get(amazon)) == 500_000 // 9
    sciq = seqio.TaskRegistry.get("sciq_Multiple_Choice")
    assert train.get_rate(sciq) == 11_679


def test_catalogue_exclusions_have_mixtures_and_reasons():
    rows = {row for mixture in RULES for row in exclusions(mixture)}
    assert len(rows) > 50
    for row in rows:
        assert row.reason
        assert row.match in ("exact", "substring")
        assert row.mixtures <= RULES.keys()


def test_catalogue_datasets_all_have_tasks_except_jigsaw(catalogue):
    found = {(entry.task.dataset, entry.task.subset) for entry in catalogue.catalogue_entries()}
    missing = [row.name for row in datasets() if (row.name, row.subset) not in found]
    assert missing == ["jigsaw_toxicity_pred"]


def test_catalogue_anli_rounds_are_tasks_over_its_own_splits(catalogue):
    import seqio

    for number in (1, 2, 3):
        task = seqio.TaskRegistry.get(f"anli_GPT_3_style_r{number}")
        assert task.source.split_mapping == {
            "train": f"train_r{number}",
            "validation": f"dev_r{number}",
            "test": f"test_r{number}",
        }
    assert task.num_input_examples("train") == 100_459
    assert task.num_input_examples("validation") == 1_200
    names = [name for name in seqio.TaskRegistry.names() if name.startswith("anli_")]
    assert len(names) == 3 * 15 * 2

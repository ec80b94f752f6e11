"""The catalogue as data equals what `import t0.seqio_tasks` registers."""

import json

from t0.catalogue.listing import read_listing


def write_own(folder):
    from t0.testing import write_rows, write_templates

    write_templates(
        folder / "moods", {"which": ("{{t}} ||| {{answer_choices[l]}}", "sad ||| glad")}
    )
    write_rows(folder / "moods" / "train.jsonl", [{"t": "rain", "l": 0}, {"t": "sun", "l": 1}])
    mixtures = {
        "counted": {"tasks": ["moods_.*", "super_glue_cb_can_we_infer_score_eval"]},
        "fixed": {"tasks": ["moods_which", "moods_which_1shot"], "rate": 7},
        "shots": {"tasks": ["moods_which"], "few_shot": {"of": ["moods_.*"], "k": 1}},
        "options": {
            "tasks": [{"task": "moods_which_1shot_opt", "rate": "t0"}],
            "few_shot": {
                "of": ["moods_.*"],
                "k": 1,
                "suffix": "opt",
                "outer_templates": ["{inputs} {choices}"],
            },
        },
    }
    (folder / "mixtures.yaml").write_text(json.dumps(mixtures))


def test_catalogue_listing_equals_registered_tasks_and_rates(imported, tmp_path, monkeypatch):
    import seqio

    write_own(tmp_path)
    with imported(tmp_path):
        monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
        listing = read_listing()
        assert list(listing.tasks) == list(seqio.TaskRegistry.names())
        assert set(listing.mixtures) == set(seqio.MixtureRegistry.names())
        for name, listed in listing.tasks.items():
            assert tuple(seqio.TaskRegistry.get(name).splits) == listed.splits
        for name in listing.mixtures:
            mixture = seqio.MixtureRegistry.get(name)
            wanted = [(task.name, mixture.get_rate(task)) for task in mixture.tasks]
            assert listing.members(name) == wanted
    assert listing.members("options") == [("moods_which_1shot_opt", 2.0)]
    assert dict(listing.members("counted")) == {
        "moods_which": 2.0,
        "moods_which_1shot": 2.0,
        "moods_which_1shot_opt": 2.0,
        "moods_which_1shot_opt_score_eval": 2.0,
        "moods_which_1shot_score_eval": 2.0,
        "moods_which_score_eval": 2.0,
        "super_glue_cb_can_we_infer_score_eval": 250.0,
    }

from pathlib import Path

import gin
import pytest

from t0.config import gin_files, parse
from t0.config.bindings import bound
from t0.errors import UserError

# The kinds of names that the configs of public checkpoints hold and today's packages lack.
OLD_CONFIG = """
import mesh_tensorflow.transformer.t2t_vocabulary
import t5.data.sentencepiece_vocabulary
import t5.models.mesh_transformer

d_ff = 64
MIXTURE_NAME = 'all_mix'
init_checkpoint = 'gs://t5-data/pretrained_models/small/model.ckpt-1000000'

sentencepiece_vocabulary.SentencePieceVocabulary.extra_ids = 100
maybe_print_dataset.should_print = False
get_default_vocabulary.path = 'gs://t5-data/vocabs/old.model'
run.vocabulary = @t5.data.sentencepiece_vocabulary.SentencePieceVocabulary()
run.learning_rate_schedule = @learning_rate_schedules.learning_rate_schedule_noam
learning_rate_schedule_noam.warmup_steps = 10000
encoder/DenseReluDense.hidden_size = %d_ff
"""


def test_gin_deprecated_names_are_skipped_and_listed(tmp_path):
    (tmp_path / "old.gin").write_text(OLD_CONFIG)
    parsed = parse.parse([str(tmp_path / "old.gin")], [])
    assert set(parsed.deprecated) == {
        "sentencepiece_vocabulary.SentencePieceVocabulary",
        "t5.data.sentencepiece_vocabulary.SentencePieceVocabulary",
        "maybe_print_dataset",
        "get_default_vocabulary",
    }
    assert parsed.unread_macros == ("init_checkpoint",)
    assert bound("learning_rate_schedule_noam.warmup_steps") == 10000
    assert bound("encoder/DenseReluDense.hidden_size") == 64


@pytest.mark.parametrize("name", ["t5_test_tiny.gin", "t5.1.0.small_finetuned.gin"])
def test_gin_published_operative_configs_are_parsed(shared_data, name):
    parsed = parse.parse(["dataset.gin", str(shared_data / "facts" / "operative" / name)], [])
    sizes = {"t5_test_tiny.gin": (32, 2), "t5.1.0.small_finetuned.gin": (512, 6)}
    d_model, layers = sizes[name]
    assert bound("encoder/Unitransformer.d_model") == d_model
    assert bound("encoder/make_layer_stack.num_layers") == layers
    assert set(parsed.deprecated) <= {"maybe_print_dataset"}


# The first words of a row of docs/recipe.md, the gin file, whether it reads `tokens_per_batch`, the
# batch of the published command with it, and the dropout.
BATCH_AND_DROPOUT = (
    ("ours: `gin/models", "models/t5.1.1.lm100k.xxl.gin", True, 1048576, 0.0),
    ("ours: `gin/models", "models/t5.1.1.lm100k.xl.gin", True, 1048576, 0.0),
    ("ours: `gin/runs", "runs/t0pp_train.gin", True, 1048576, 0.1),
    ("ours: `gin/runs", "runs/t0_3b.gin", True, 1048576, 0.1),
    ("T5's `models", "models/t5.1.1.xxl.gin", False, None, 0.0),
    ("a public operative config of T5's", "t5.1.0.small_finetuned.gin", False, None, 0.1),
    ("a public operative config with", "t5_test_tiny.gin", False, 16384, 0.0),
)


@pytest.mark.parametrize(("row", "name", "reads", "batch", "dropout"), BATCH_AND_DROPOUT)
def test_gin_batch_size_and_dropout_equal_the_recipe_page(
    request, row, name, reads, batch, dropout
):
    if "/" not in name:
        name = str(request.getfixturevalue("shared_data") / "facts" / "operative" / name)
    parsed = parse.parse(["dataset.gin", name], ["tokens_per_batch = 1048576"])
    assert ("tokens_per_batch" not in parsed.unread_macros) == reads
    assert bound("run.batch_size") == (batch and ("tokens_per_batch", batch))
    assert gin.query_parameter("%dropout_rate") == dropout
    page = Path(__file__).resolve().parents[2] / "docs" / "recipe.md"
    (line,) = [line for line in page.read_text().splitlines() if line.startswith(f"| {row}")]
    _, _, read, size, rate, _ = line.split("|")
    assert read.strip().startswith("yes" if reads else "no")
    assert f"{batch or 2048:,}" in size
    assert rate.strip().startswith(str(dropout))


def test_gin_findings_are_printed_as_one_line_each(tmp_path, capsys):
    (tmp_path / "old.gin").write_text("maybe_print_dataset.should_print = False\n")
    params = ["tokens_per_batch = 4", "gone.function.x = 1"]
    parsed = parse.parse([str(tmp_path / "old.gin")], params, also_deprecated=["gone.function"])
    parse.print_findings(parsed)
    assert capsys.readouterr().err.splitlines() == [
        "gin: skipped the deprecated name 'gone.function' (named on the command line)",
        "gin: skipped the deprecated name 'maybe_print_dataset' (t5 lists it as removed)",
        "gin: nothing reads the macro 'tokens_per_batch': it has no effect",
    ]


def test_gin_file_that_includes_itself_by_name_is_refused(tmp_path, monkeypatch):
    # runs/eval.gin includes T5's eval.gin, and the working directory is looked in first.
    (tmp_path / "eval.gin").write_text("include 'runs/eval.gin'\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"include each other in a cycle\..*rename it"):
        parse.parse(["eval.gin"], [])


def test_gin_macro_that_is_read_is_not_reported_as_unread():
    params = ["a = 3", "b = %a", "Unitransformer.d_model = %b", "c = 1", "run.mesh_devices = [%c]"]
    assert parse.parse([], params).unread_macros == ()
    # Nor is another name for a macro, as the operative config of a fine-tuning has it.
    assert parse.parse([], ["a = 3", "b = %a"]).unread_macros == ()
    # T5's code asks for this one by name.
    assert parse.parse([], ["MIXTURE_NAME = 'x'"]).unread_macros == ()


@pytest.mark.parametrize(
    ("files", "params", "message"),
    [
        (
            ["datset.gin"],
            [],
            "gin file not found: datset.gin. Did you mean dataset.gin or .*Looked in the working",
        ),
        (["dataset.gin"], ["include 'modls/t5.1.1.tiny.gin'"], "Did you mean models/t5.1.1.tiny"),
        (
            [],
            ["d_model = 3", "run.trainsteps = 5"],
            r"run has no parameter 'trainsteps' \(--gin_param='run.trainsteps = 5'\)"
            ".*mean train_steps",
        ),
        (
            ["typo.gin"],
            [],
            r"unknown gin name 'Unitransfomer' \(line 2 of typo.gin\).*mean Unitran",
        ),
        (
            [],
            ["run.optimizer = @AdafactrOptimizer"],
            "'AdafactrOptimizer'.*mean AdafactorOptimizer",
        ),
        (["schedule.gin"], [], r"'cosine' \(line 1 of schedule.gin\)"),
        (
            [],
            ["A = 1", "MODEL_DIR = /models/x"],
            r"at --gin_param='MODEL_DIR = /models/x'.*second pair of quotes: "
            """--gin.MODEL_DIR="'/models/x'"$""",
        ),
        ([], ["A = {'a': b}"], r"at --gin_param='A = .*Failed to parse token 'b'\.$"),
        ([], ["import no.such.module"], "cannot be read: No module named 'no'"),
        ([], ["run.train_steps = ("], "cannot be read"),
        ([], ["run.train_steps"], "cannot be read"),
    ],
)
def test_gin_mistakes_are_named(tmp_path, monkeypatch, files, params, message):
    (tmp_path / "typo.gin").write_text("d_model = 3\nUnitransfomer.d_model = 4\n")
    (tmp_path / "schedule.gin").write_text("run.learning_rate_schedule = [0.1, @cosine]\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        parse.parse(files, params)


def test_gin_unknown_names_can_be_skipped():
    params = ["no.such.function.x = 1", "run.train_steps = 5"]
    assert parse.parse([], params, skip_all_unknown=True).deprecated == ()
    assert bound("run.train_steps") == 5


def test_gin_file_search_takes_the_first_match(tmp_path, monkeypatch):
    here, prefix = tmp_path / "here", tmp_path / "prefix"
    for folder, names in ((here, ["a"]), (prefix, ["a", "b", "dataset"])):
        folder.mkdir()
        for name in names:
            (folder / f"{name}.gin").write_text(f"run.train_steps = {len(str(folder))}\n")
    monkeypatch.chdir(here)

    def taken(name):
        gin.clear_config()
        parse.parse([f"{name}.gin"], [], location_prefixes=[str(prefix)])
        return bound("run.train_steps")

    assert taken("a") == len(str(here))
    assert taken("b") == len(str(prefix))
    assert taken("dataset") == len(str(prefix))  # before T5's file of that name


@pytest.mark.parametrize("name", ["models", "mesh", "runs"])
def test_gin_file_search_ignores_folders_on_python_path(tmp_path, monkeypatch, name):
    # Python takes them for packages, and gin asked where such a package's file is.
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    parse.parse([f"{name}/{sorted((gin_files.gin_folder() / name).glob('*.gin'))[0].name}"], [])
    with pytest.raises(UserError, match=f"gin file not found: {name}/no.gin"):
        parse.parse([f"{name}/no.gin"], [])


def test_gin_file_search_prefers_our_files_to_t5_and_mesh():
    ours, t5s, meshs = gin_files.search_path()
    assert (gin_files.gin_folder() / "models" / "t5.1.1.mini.gin").is_file()
    assert str(gin_files.gin_folder()) == ours
    assert t5s.endswith("t5/models/gin")
    assert meshs.endswith("mesh_tensorflow/transformer/gin")
    parse.parse(
        ["models/t5.1.1.mini.gin", "score_eval.gin", "defaults.gin"], ["MIXTURE_NAME = 'm'"]
    )
    assert bound("run.mode") == "score_eval"
    assert bound("mesh_eval_dataset_fn.mixture_or_task_name") == "m"


def test_gin_file_names_do_not_repeat_t5_or_mesh_names():
    ours, *theirs = map(Path, gin_files.search_path())
    names = {str(file.relative_to(ours)) for file in ours.rglob("*.gin")}
    for folder in theirs:
        assert not names & {str(file.relative_to(folder)) for file in folder.rglob("*.gin")}


def test_gin_required_value_that_is_not_set_is_named():
    parse.parse(["eval.gin"], [])
    with pytest.raises(UserError, match="needs MIXTURE_NAME.*--gin_param='MIXTURE_NAME = ...'"):
        bound("mesh_eval_dataset_fn.mixture_or_task_name")
    with pytest.raises(UserError, match="needs tpu_mesh_shape.tpu_topology"):
        bound("run.mesh_shape")
    assert bound("run.no_such", 7) == 7

"""Registers a small SeqIO task for a test, and compares its cache with SeqIO's own examples.

with tiny_task("moods", {"train": ROWS}, steps, vocabulary="tiny.model") as task:
    assert_cache_like_seqio(task.name, folder)
"""

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t0.testing.state import registries_restored


@contextlib.contextmanager
def tiny_task(
    name: str,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    preprocessors: Sequence[Callable[..., Any]],
    *,
    vocabulary: str | Path,
    **options: Any,
) -> Iterator[Any]:
    """Registers a SeqIO task over rows; it is unregistered at the end of the context.

    Tokenization, the place of the cache and EOS are added after your preprocessors.

    Args:
      name: the task's name.
      splits: name of a split -> its rows, which all have the same columns.
      preprocessors: functions of a `tf.data.Dataset` that make the features "inputs" and "targets"
        from the columns.
      vocabulary: a SentencePiece model, such as `train_vocabulary` writes.
      **options: more arguments for `seqio.TaskRegistry.add`, such as `metric_fns`.
    """

    from t0.compat import seqio, tf

    def read(split: str, shuffle_files: bool = False) -> Any:
        del shuffle_files
        rows = splits[split]
        columns = {column: [row[column] for row in rows] for column in rows[0]}
        return tf.data.Dataset.from_tensor_slices(columns)

    feature = seqio.Feature(seqio.SentencePieceVocabulary(str(vocabulary), extra_ids=0))
    sizes = {split: len(rows) for split, rows in splits.items()}
    with registries_restored():
        yield seqio.TaskRegistry.add(
            name,
            seqio.FunctionDataSource(read, [*splits], num_input_examples=sizes),
            preprocessors=[
                *preprocessors,
                seqio.preprocessors.tokenize,
                seqio.CacheDatasetPlaceholder(),
                seqio.preprocessors.append_eos,
            ],
            output_features={"inputs": feature, "targets": feature},
            **options,
        )


def assert_cache_like_seqio(name: str, folder: str | Path) -> None:
    """Caches a registered task, and compares what is read back with SeqIO's examples, in order.

    Args:
      name: the task's name.
      folder: a folder for the cache.

    Raises:
      AssertionError: an example differs. The message names split, example and feature.
      UserError: the task cannot be cached.
    """
    from t0.caching import CacheSelection, RecordOptions, Setup, cache
    from t0.compat import seqio, tfds

    selection = CacheSelection(str(folder), tasks=[name])
    cache(selection, RecordOptions(), Setup(), num_workers=0, file=io.StringIO())
    task = seqio.TaskRegistry.get(name)
    for split in task.splits:
        ours, theirs = (
            list(tfds.as_numpy(task.get_dataset(None, split, use_cached=cached, shuffle=False)))
            for cached in (True, False)
        )
        assert len(ours) == len(theirs), f"{split}: {len(ours)} cached examples, not {len(theirs)}"
        for number, (example, expected) in enumerate(zip(ours, theirs, strict=True)):
            for feature, value in expected.items():
                assert np.array_equal(example.get(feature), value), (
                    f"{split}, example {number}, {feature}: the cache has "
                    f"{example.get(feature)!r:.200}, SeqIO makes {value!r:.200}"
                )

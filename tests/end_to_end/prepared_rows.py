"""A few rows of T5's English to German data and of C4, as TensorFlow Datasets writes them."""

from pathlib import Path


def prepare(folder: Path) -> None:
    """Writes the data into a folder for --tfds_data_dir."""
    import tensorflow_datasets as tfds

    words = "rain in Oslo and much snow in Lima then soon late wind over Cairo "
    rows = {
        "wmt_t2t_translate/de-en/1.0.0": (
            tfds.features.Translation(languages=("de", "en")),
            lambda n: {"en": f"It rains {n}.", "de": f"Es regnet {n}."},
        ),
        "c4/en/2.2.0": (
            tfds.features.FeaturesDict(
                dict.fromkeys(
                    ("text", "url", "timestamp", "content-type", "content-length"),
                    tfds.features.Text(),
                )
            ),
            lambda n: {
                **dict.fromkeys(("url", "timestamp", "content-type", "content-length"), ""),
                "text": words * (n % 5 + 2),
            },
        ),
    }
    for name, (features, row) in rows.items():
        _prepare(folder / name, features, row)


def _prepare(place, features, row):
    import tensorflow as tf
    import tensorflow_datasets as tfds

    place.mkdir(parents=True)
    name = place.parents[1].name
    splits = []
    for split, count in (("train", 400), ("validation", 2), ("test", 2)):
        path = place / f"{name}-{split}.tfrecord-00000-of-00001"
        records = [features.serialize_example(row(n)) for n in range(count)]
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)
        size = sum(map(len, records))
        splits.append(tfds.core.SplitInfo(name=split, shard_lengths=[count], num_bytes=size))
    tfds.folder_dataset.write_metadata(
        data_dir=place,
        features=features,
        split_infos=splits,
        filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
    )

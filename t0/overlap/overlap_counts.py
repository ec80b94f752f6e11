"""Counts how much of each row, prompt and dataset overlaps with the training data.

    outcome = OverlapOutcome(index, matches, training, vocabulary=None)
    for record in outcome.rows(chosen_set):      # a record of each row that overlaps
        ...
    outcome.datasets[chosen_set.name]            # the counts over all rows of the set, for JSON

Overlap is counted separately for each n-gram length n:

- A field overlaps if the whole field, or one of its n-grams, occurs in the training data.
- A prompted text overlaps if one of its n-grams occurs in the training data.
- A row overlaps if any of its fields or prompted texts overlaps.
- A prompt's example overlaps if its prompted text, or a field that the prompt reads, overlaps.

A word of a text overlaps if it belongs to an n-gram or a whole field that occurs in the training
data.
"""

import collections
import dataclasses
import difflib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t0.overlap.evaluation_rows import EvaluationSet, RowBatch
from t0.overlap.index import (
    Index,
    Matches,
    OverlapCriteria,
    hash_whole_texts,
    row_words,
    unpack_location,
)
from t0.overlap.training_texts import TrainingTexts, text_at
from t0.overlap.words import Words, split_words, word_list

# For each of these shares, the texts with at least this share of overlapping words are counted.
SHARES = (0.2, 0.5, 0.8, 1.0)
_EXAMPLES = 5
_WORDS_SHOWN, _CONTEXT_WORDS = 60, 8
# A row's record lists at most this many training datasets: the datasets with the most matches.
_MOST_DATASETS = 20


# The counts in `overlap.json`. JSON's keys are texts, also those of n-gram lengths.
Counts = dict[str, Any]


def _count_texts(settings: OverlapCriteria) -> Counts:
    """Returns the counts over no texts: those of a field, or the examples of a prompt."""
    lengths = [str(n) for n in settings.ngrams]
    return {
        "texts": 0,
        "words": 0,
        "overlapping": dict.fromkeys(lengths, 0),
        "overlapping_words": dict.fromkeys(lengths, 0),
        "share": dict.fromkeys(lengths, 0.0),
        "share_at_least": {n: dict.fromkeys(map(str, SHARES), 0) for n in lengths},
    }


def _add_text(
    counts: Counts, words: int, overlapping_words: Mapping[str, int], overlaps: Mapping[str, bool]
) -> None:
    """Adds a text to the counts of a field or prompt.

    Args:
      counts: the counts, which are changed in place.
      words: the number of words in the text.
      overlapping_words: n -> the number of overlapping words in the text.
      overlaps: n -> whether the text, or the prompt's example, overlaps.
    """
    counts["texts"] += 1
    counts["words"] += words
    for n, count in overlapping_words.items():
        counts["overlapping"][n] += overlaps[n]
        counts["overlapping_words"][n] += count
        total = counts["overlapping_words"][n]
        counts["share"][n] = round(total / counts["words"], 6) if counts["words"] else 0.0
        for share in SHARES:
            counts["share_at_least"][n][str(share)] += words > 0 and count >= share * words


@dataclasses.dataclass(frozen=True)
class _OverlappingWords:
    """The overlapping words of a batch's texts.

    Attributes:
      words: the number of words of each text, int64 [texts].
      by_n: n, as text -> the number of overlapping words of each text, int64 [texts].
      whole: whether each text is a field that occurs as a whole, bool [texts].
      entries: number of a text -> the matches in it, as positions in `Index.hashes`.
    """

    words: np.ndarray
    by_n: dict[str, np.ndarray]
    whole: np.ndarray
    entries: dict[int, list[int]]


class OverlapOutcome:
    """Reads the evaluation rows again and counts their overlapping words.

    Args:
      index: the index of the evaluation rows.
      matches: the matches of the search.
      training: the training data.
      vocabulary: the SentencePiece processor for records without texts, or None.

    Attributes:
      datasets: set name -> its counts, for each set whose rows were read to the end.
    """

    def __init__(
        self, index: Index, matches: Matches, training: TrainingTexts, vocabulary: Any | None
    ) -> None:
        self._index, self._training = index, training
        self._matches = matches.table
        self._entries = matches.table[:, 0].copy()
        self._names = dataset_names(training)[0]
        self._is_hit = np.zeros(len(index) + 1, bool)
        self._is_hit[self._entries] = True
        self._text_at = functools.lru_cache(maxsize=64)(
            lambda source, record: text_at(training, source, record, vocabulary)
        )
        self.datasets: dict[str, Counts] = {}

    def rows(self, chosen: EvaluationSet) -> Iterator[dict[str, Any]]:
        """Counts all rows, and yields a record for each row that overlaps.

        Raises:
          UserError: if the rows, or the training texts of the examples, cannot be read.
        """
        settings = self._index.settings
        tally = {
            "rows": 0,
            "overlapping": dict.fromkeys(map(str, settings.ngrams), 0),
            "fields": {},
            "prompts": {prompt.name: _count_texts(settings) for prompt in chosen.prompts},
            "found_in": collections.Counter(),
            "examples": [],
        }
        for batch in chosen.batches():
            overlap = self._find_overlapping_words(batch, split_words(batch.texts))
            texts_of_row: list[list[int]] = [[] for _ in batch.rows]
            for text, row_index in enumerate(batch.owner.tolist()):
                texts_of_row[row_index].append(text)
            for row, texts in zip(batch.rows, texts_of_row, strict=True):
                record = self._count_row(chosen, batch, row, texts, overlap, tally)
                if record is not None:
                    yield record
        found_in = sorted(tally["found_in"].items(), key=lambda item: (-item[1], item[0]))
        fields = dict(sorted(tally["fields"].items()))
        self.datasets[chosen.name] = {**tally, "fields": fields, "found_in": dict(found_in)}

    def _find_overlapping_words(self, batch: RowBatch, words: Words) -> _OverlappingWords:
        """Finds the overlapping words of a batch's texts."""
        index, sizes = self._index, np.diff(words.ends)
        whole = np.zeros(len(batch.texts), bool)
        entries: dict[int, list[int]] = collections.defaultdict(list)
        fields = np.flatnonzero(batch.is_field & (sizes >= index.settings.min_words))
        field_entries = index.lookup(hash_whole_texts(words, fields))
        hit = (field_entries >= 0) & self._is_hit[field_entries]
        whole[fields[hit]] = True
        for text, entry in zip(fields[hit].tolist(), field_entries[hit].tolist(), strict=True):
            entries[text].append(entry)
        by_n = {}
        for n, (positions, ngram_entries) in self._find_ngrams(batch, words).items():
            for text, entry in zip(
                words.text_of[positions].tolist(), ngram_entries.tolist(), strict=True
            ):
                entries[text].append(entry)
            marks = np.zeros(len(words.hashes) + 1, np.int64)
            np.add.at(marks, positions, 1)
            np.add.at(marks, positions + n, -1)
            inside = np.cumsum(marks[:-1]) > 0
            self._mark_whole(batch, words, np.flatnonzero(whole), n, inside)
            sums = np.append(0, np.cumsum(inside))
            by_n[str(n)] = np.diff(sums[words.ends])
        return _OverlappingWords(sizes, by_n, whole, entries)

    def _find_ngrams(
        self, batch: RowBatch, words: Words
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Finds the n-grams that occur in the training data.

        Returns:
          n -> the positions of the n-grams' first words, and the n-grams' positions in the index.
        """
        runs = {}
        for n in self._index.settings.ngrams:
            positions, hashes = words.windows(n)
            entries = self._index.lookup(hashes)
            hit = (entries >= 0) & self._is_hit[entries]
            runs[n] = positions[hit], entries[hit]
        if not any(len(positions) for positions, _ in runs.values()):
            return runs
        # N-grams of a prompt's own words are left out. They may equal a field of another row, but
        # that is not an overlap of this row.
        before = np.append(0, np.cumsum(row_words(batch, words)))
        for n, (positions, entries) in runs.items():
            from_row = before[positions + n] - before[positions] == n
            runs[n] = positions[from_row], entries[from_row]
        return runs

    def _mark_whole(
        self, batch: RowBatch, words: Words, whole: np.ndarray, n: int, inside: np.ndarray
    ) -> None:
        """Marks the words of fields that occur as a whole in the training data.

        If such a field has fewer than n words, its words are also marked in the row's prompted
        texts, because no n-gram of n words can match the field there.

        Args:
          batch: rows and their texts.
          words: the words of these texts.
          whole: the numbers of the texts that are fields and occur as a whole in the training data.
          n: the length of the n-grams.
          inside: whether each word overlaps, bool [W]; changed in place.
        """
        sizes = np.diff(words.ends)
        for text in whole.tolist():
            inside[words.ends[text] : words.ends[text + 1]] = True
            if sizes[text] >= n:
                continue
            field_hash = hash_whole_texts(words, [text])[0]
            for prompted in np.flatnonzero(
                ~batch.is_field & (batch.owner == batch.owner[text])
            ).tolist():
                starts = np.arange(words.ends[prompted], words.ends[prompted + 1] - sizes[text] + 1)
                for start in starts[
                    words.hash_sequences(starts, sizes[text]) == field_hash
                ].tolist():
                    inside[start : start + sizes[text]] = True

    def _count_row(
        self,
        chosen: EvaluationSet,
        batch: RowBatch,
        row: int,
        texts: list[int],
        overlap: _OverlappingWords,
        tally: Counts,
    ) -> dict[str, Any] | None:
        """Adds a row to the counts in `tally`. Returns its record, or None if nothing overlaps."""
        lengths = [*overlap.by_n]
        fields, prompts = {}, {}
        overlaps_by_column: dict[str, dict[str, bool]] = {}
        for text in texts:
            size = int(overlap.words[text])
            word_counts = {n: int(overlap.by_n[n][text]) for n in lengths}
            overlaps = {n: count > 0 for n, count in word_counts.items()}
            record = {"words": size, "overlapping_words": word_counts}
            if batch.is_field[text]:
                name, whole = batch.origins[text], bool(overlap.whole[text])
                counts = tally["fields"].setdefault(
                    name, {**_count_texts(self._index.settings), "whole": 0}
                )
                counts["whole"] += whole
                _add_text(counts, size, word_counts, overlaps)
                column = overlaps_by_column.setdefault(name.partition(".")[0], {})
                column.update({n: column.get(n, False) or overlaps[n] for n in lengths})
                if any(overlaps.values()):
                    fields.setdefault(name, []).append({**record, "whole": whole})
                continue
            prompt = chosen.prompts[batch.origins[text]]
            for name in prompt.compiled.columns & overlaps_by_column.keys():
                overlaps = {n: overlaps[n] or overlaps_by_column[name][n] for n in lengths}
            _add_text(tally["prompts"][prompt.name], size, word_counts, overlaps)
            prompts[prompt.name] = {"idx": row, **record, "overlaps": overlaps}
        every = [*overlaps_by_column.values(), *(item["overlaps"] for item in prompts.values())]
        row_overlaps = {n: any(item[n] for item in every) for n in lengths}
        tally["rows"] += 1
        for n in lengths:
            tally["overlapping"][n] += row_overlaps[n]
        if not any(row_overlaps.values()):
            return None
        entries = sorted({entry for text in texts for entry in overlap.entries.get(text, ())})
        datasets = self._locate(entries)
        tally["found_in"].update(item["dataset"] for item in datasets)
        record = {
            "dataset": chosen.name,
            "split": chosen.split,
            "row": row,
            "overlaps": row_overlaps,
            "fields": fields,
            "prompts": {name: p for name, p in prompts.items() if any(p["overlaps"].values())},
            "found": datasets[:_MOST_DATASETS],
        }
        if len(tally["examples"]) < _EXAMPLES and row_overlaps[lengths[0]]:
            tally["examples"].append(self._describe_example(chosen, batch, row, texts, overlap))
        return record

    def _locate(self, entries: list[int]) -> list[dict[str, Any]]:
        """Finds the training datasets in which at least one of the given matches occurs.

        Args:
          entries: the matches, as positions in `Index.hashes`.

        Returns:
          for each dataset, a record with its counts and the location of one training text.
        """
        lows, highs = (np.searchsorted(self._entries, entries, side) for side in ("left", "right"))
        locations: dict[int, collections.Counter[int]] = collections.defaultdict(
            collections.Counter
        )
        times: collections.Counter[int] = collections.Counter()
        for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
            for _, dataset, first, count in self._matches[low:high].tolist():
                locations[dataset][first] += 1
                times[dataset] += count
        records = []
        for dataset, firsts in locations.items():
            # Choose the location with the most matches. If several have equally many, choose the
            # first.
            location = min(firsts, key=lambda first, firsts=firsts: (-firsts[first], first))
            number, record = unpack_location(location)
            source = self._training.sources[number]
            where = {"task": source.task, "split": source.split, "file": source.file}
            records.append(
                {
                    "dataset": self._names[dataset],
                    "runs": firsts.total(),
                    "times": times[dataset],
                    "where": {**where, "record": record, "source": number},
                }
            )
        return sorted(records, key=lambda item: (-item["runs"], item["dataset"]))

    def _describe_example(
        self,
        chosen: EvaluationSet,
        batch: RowBatch,
        row: int,
        texts: list[int],
        overlap: _OverlappingWords,
    ) -> dict[str, Any]:
        """Describes the text of a row that overlaps most, and the training text that it matches."""
        n = str(self._index.settings.ngrams[0])
        matched = [index for index in texts if overlap.entries.get(index)]
        text = max(matched, key=lambda index: (overlap.by_n[n][index], bool(batch.is_field[index])))
        origin = batch.origins[text]
        where = self._locate(sorted(set(overlap.entries[text])))[0]["where"]
        training_text = self._text_at(where["source"], where["record"]) or ""
        evaluation_words, training_words = word_list(batch.texts[text]), word_list(training_text)
        start, training_start, length = longest_common(evaluation_words, training_words)
        return {
            "row": row,
            "part": origin if batch.is_field[text] else chosen.prompts[origin].name,
            "text": " ".join(evaluation_words[:_WORDS_SHOWN]),
            "same_words": " ".join(evaluation_words[start : start + length][:_WORDS_SHOWN]),
            "same": length,
            "training_text": " ".join(
                training_words[max(0, training_start - _CONTEXT_WORDS) :][
                    : length + 2 * _CONTEXT_WORDS
                ][:_WORDS_SHOWN]
            ),
            "where": where,
        }


def dataset_names(training: TrainingTexts) -> tuple[list[str], list[int]]:
    """Returns the names of the training datasets, and the dataset number of each source."""
    names = sorted({source.dataset for source in training.sources})
    numbers = {name: number for number, name in enumerate(names)}
    return names, [numbers[source.dataset] for source in training.sources]


def longest_common(first: list[str], second: list[str]) -> tuple[int, int, int]:
    """Finds the longest word sequence that two lists share.

    Returns its start in the first list, its start in the second list, and its length.

    >>> longest_common("a b c d".split(), "x b c y".split())
    (1, 1, 2)
    """
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    match = matcher.find_longest_match()
    return match.a, match.b, match.size

"""Computes the overlap by row, prompt and dataset: shares of words, whole fields, examples.

    outcome = OverlapOutcome(index, found, training, vocabulary=None)
    for record in outcome.rows(chosen_set):      # a record of each row that overlaps
        ...
    outcome.datasets[chosen_set.name]            # the counts over all rows of the set

A field overlaps at n if one of its n-grams, or the whole field, occurs in the training data. A
prompted text overlaps at n if one of its n-grams does. A row overlaps if any of its fields or
prompted texts does. A prompt's example overlaps if its text does, or a field that the prompt reads.
The share of a text is the fraction of its words that are inside such an n-gram or whole field.
"""

import collections
import dataclasses
import difflib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t0.overlap.evaluation_rows import EvaluationSet, RowBatch
from t0.overlap.index import Index, OverlapCriteria, row_words, whole_hashes
from t0.overlap.scanning import Matches, place_of, places_and_datasets
from t0.overlap.training_texts import TrainingTexts, text_at
from t0.overlap.words import Words, split_words, word_list

# Texts are counted if their share of overlapping words is at least one of these.
SHARES = (0.2, 0.5, 0.8, 1.0)
_EXAMPLES = 5
_WORDS_SHOWN, _WORDS_BESIDE = 60, 8
# The maximum number of training datasets in a row's record, those with the most matches first.
_PLACES = 20


@dataclasses.dataclass
class TextCounts:
    """Counts over the texts of a field, or over the examples of a prompt.

    Attributes:
      texts: the number of texts.
      words: the number of words in them.
      overlapping: n -> the number of texts, or of a prompt's examples, that overlap.
      overlapping_words: n -> the number of overlapping words.
      at_least: n -> for each of `SHARES`, the number of texts with at least this share.
      whole: the number of texts that occur as a whole.
    """

    settings: dataclasses.InitVar[OverlapCriteria]
    texts: int = 0
    words: int = 0
    overlapping: dict[int, int] = dataclasses.field(default_factory=dict)
    overlapping_words: dict[int, int] = dataclasses.field(default_factory=dict)
    at_least: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    whole: int = 0

    def __post_init__(self, settings: OverlapCriteria) -> None:
        for n in settings.ngrams:
            self.overlapping[n] = self.overlapping_words[n] = 0
            self.at_least[n] = [0] * len(SHARES)

    def add(self, words: int, covered: Mapping[int, int], overlaps: Mapping[int, bool]) -> None:
        """Counts a text: its words, its overlapping words by n, and whether it overlaps by n."""
        self.texts += 1
        self.words += words
        for n, some in covered.items():
            self.overlapping[n] += overlaps[n]
            self.overlapping_words[n] += some
            for number, share in enumerate(SHARES):
                self.at_least[n][number] += words > 0 and some >= share * words

    def record(self) -> dict[str, Any]:
        """Returns the counts as a JSON value."""
        share = {
            str(n): round(some / self.words, 6) if self.words else 0.0
            for n, some in self.overlapping_words.items()
        }
        at_least = {
            str(n): dict(zip(map(str, SHARES), counts, strict=True))
            for n, counts in self.at_least.items()
        }
        return {
            "texts": self.texts,
            "words": self.words,
            "overlapping": _by_n(self.overlapping),
            "overlapping_words": _by_n(self.overlapping_words),
            "share": share,
            "share_at_least": at_least,
        }


def _by_n(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(n): value for n, value in values.items()}


@dataclasses.dataclass
class SetCounts:
    """Counts over the rows of an evaluation set.

    Attributes:
      rows: the number of rows.
      overlapping: n -> the number of rows that overlap.
      fields, prompts: name -> counts over its texts.
      found_in: training dataset -> the number of rows that overlap with it.
      examples: some overlapping rows, with the training text.
    """

    rows: int
    overlapping: dict[int, int]
    fields: dict[str, TextCounts]
    prompts: dict[str, TextCounts]
    found_in: collections.Counter[str]
    examples: list[dict[str, Any]]

    def record(self) -> dict[str, Any]:
        """Returns the counts as a JSON value."""
        fields = {
            name: {**tally.record(), "whole": tally.whole}
            for name, tally in sorted(self.fields.items())
        }
        return {
            "rows": self.rows,
            "overlapping": _by_n(self.overlapping),
            "fields": fields,
            "prompts": {name: tally.record() for name, tally in self.prompts.items()},
            "found_in": dict(sorted(self.found_in.items(), key=lambda one: (-one[1], one[0]))),
            "examples": self.examples,
        }


@dataclasses.dataclass(frozen=True)
class _Covered:
    """The overlapping words of a batch's texts.

    Attributes:
      words: the number of words of each text, int64 [texts].
      by_n: n -> the number of overlapping words of each text, int64 [texts].
      whole: whether each text is a field that occurs as a whole, bool [texts].
      places: text -> the index positions of the matches in it.
    """

    words: np.ndarray
    by_n: dict[int, np.ndarray]
    whole: np.ndarray
    places: dict[int, list[int]]


class OverlapOutcome:
    """Reads the evaluation rows again and counts their overlapping words.

    Args:
      index: the index of the evaluation rows.
      found: the matches of the search.
      training: the training data.
      vocabulary: the SentencePiece processor for records without texts, or None.

    Attributes:
      datasets: set name -> its counts, for each set whose rows were read to the end.
    """

    def __init__(
        self, index: Index, found: Matches, training: TrainingTexts, vocabulary: Any | None
    ) -> None:
        self._index, self._training, self._vocabulary = index, training, vocabulary
        self._found = found
        self._places, self._dataset_of = places_and_datasets(found.keys)
        self._names = dataset_names(training)[0]
        self._hit = np.zeros(len(index) + 1, bool)
        self._hit[self._places] = True
        self._text_at = functools.lru_cache(maxsize=64)(
            lambda source, record: text_at(training, source, record, vocabulary)
        )
        self.datasets: dict[str, SetCounts] = {}

    def rows(self, chosen: EvaluationSet) -> Iterator[dict[str, Any]]:
        """Counts all rows, and yields a record for each row that overlaps.

        Raises:
          UserError: if the rows, or the training texts of the examples, cannot be read.
        """
        settings = self._index.settings
        tally = SetCounts(
            rows=0,
            overlapping=dict.fromkeys(settings.ngrams, 0),
            fields={},
            prompts={prompt.name: TextCounts(settings) for prompt in chosen.prompts},
            found_in=collections.Counter(),
            examples=[],
        )
        for batch in chosen.batches():
            covered = self._covered(batch, split_words(batch.texts))
            of_row: list[list[int]] = [[] for _ in batch.rows]
            for text, place in enumerate(batch.owner.tolist()):
                of_row[place].append(text)
            for row, texts in zip(batch.rows, of_row, strict=True):
                record = self._row(chosen, batch, row, texts, covered, tally)
                if record is not None:
                    yield record
        self.datasets[chosen.name] = tally

    def _covered(self, batch: RowBatch, words: Words) -> _Covered:
        """Finds the overlapping words of a batch's texts."""
        index, sizes = self._index, np.diff(words.ends)
        whole = np.zeros(len(batch.texts), bool)
        places: dict[int, list[int]] = collections.defaultdict(list)
        fields = np.flatnonzero(batch.is_field & (sizes >= index.settings.min_words))
        at = index.lookup(whole_hashes(words, fields))
        hit = (at >= 0) & self._hit[at]
        whole[fields[hit]] = True
        for text, place in zip(fields[hit].tolist(), at[hit].tolist(), strict=True):
            places[text].append(place)
        by_n = {}
        for n, (positions, found) in self._found_runs(batch, words).items():
            for text, place in zip(words.text_of[positions].tolist(), found.tolist(), strict=True):
                places[text].append(place)
            marks = np.zeros(len(words.hashes) + 1, np.int64)
            np.add.at(marks, positions, 1)
            np.add.at(marks, positions + n, -1)
            inside = np.cumsum(marks[:-1]) > 0
            self._mark_whole(batch, words, np.flatnonzero(whole), n, inside)
            sums = np.append(0, np.cumsum(inside))
            by_n[n] = np.diff(sums[words.ends])
        return _Covered(sizes, by_n, whole, places)

    def _found_runs(
        self, batch: RowBatch, words: Words
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Finds the n-grams that occur in the training data.

        Returns:
          n -> the positions of the n-grams' first words, and the n-grams' positions in the index.
        """
        runs = {}
        for n in self._index.settings.ngrams:
            positions, hashes = words.windows(n)
            found = self._index.lookup(hashes)
            hit = (found >= 0) & self._hit[found]
            runs[n] = positions[hit], found[hit]
        if not any(len(positions) for positions, _ in runs.values()):
            return runs
        # A prompt's own words may equal another row's field, which is not an overlap of this row.
        before = np.append(0, np.cumsum(row_words(batch, words)))
        for n, (positions, found) in runs.items():
            own = before[positions + n] - before[positions] == n
            runs[n] = positions[own], found[own]
        return runs

    def _mark_whole(
        self, batch: RowBatch, words: Words, whole: np.ndarray, n: int, inside: np.ndarray
    ) -> None:
        """Marks the words of whole fields, and of fields shorter than n also inside prompts."""
        sizes = np.diff(words.ends)
        for text in whole.tolist():
            inside[words.ends[text] : words.ends[text + 1]] = True
            if sizes[text] >= n:
                continue
            wanted = whole_hashes(words, [text])[0]
            for other in np.flatnonzero(
                ~batch.is_field & (batch.owner == batch.owner[text])
            ).tolist():
                starts = np.arange(words.ends[other], words.ends[other + 1] - sizes[text] + 1)
                for start in starts[words.at(starts, sizes[text]) == wanted].tolist():
                    inside[start : start + sizes[text]] = True

    def _row(
        self,
        chosen: EvaluationSet,
        batch: RowBatch,
        row: int,
        texts: list[int],
        covered: _Covered,
        tally: SetCounts,
    ) -> dict[str, Any] | None:
        """Counts a row, and returns its record if it overlaps."""
        ngrams = self._index.settings.ngrams
        fields, prompts = {}, {}
        in_fields: dict[str, dict[int, bool]] = {}
        for text in texts:
            some = {n: int(covered.by_n[n][text]) for n in ngrams}
            overlaps = {n: count > 0 for n, count in some.items()}
            size = int(covered.words[text])
            shown = {"words": size, "overlapping_words": _by_n(some)}
            if batch.is_field[text]:
                name = batch.parts[text]
                counts = tally.fields.setdefault(name, TextCounts(self._index.settings))
                counts.whole += bool(covered.whole[text])
                counts.add(size, some, overlaps)
                known = in_fields.setdefault(name.partition(".")[0], dict.fromkeys(ngrams, False))
                for n in ngrams:
                    known[n] |= overlaps[n]
                if any(overlaps.values()):
                    fields.setdefault(name, []).append(
                        {**shown, "whole": bool(covered.whole[text])}
                    )
                continue
            prompt = chosen.prompts[batch.parts[text]]
            for name in prompt.compiled.columns & in_fields.keys():
                for n in ngrams:
                    overlaps[n] |= in_fields[name][n]
            tally.prompts[prompt.name].add(size, some, overlaps)
            prompts[prompt.name] = {
                "idx": batch.numbers[text],
                **shown,
                "overlaps": _by_n(overlaps),
            }
        found = {
            n: any(one[n] for one in in_fields.values())
            or any(one["overlaps"][str(n)] for one in prompts.values())
            for n in ngrams
        }
        tally.rows += 1
        for n in ngrams:
            tally.overlapping[n] += found[n]
        if not any(found.values()):
            return None
        places = sorted({place for text in texts for place in covered.places.get(text, ())})
        where = self._where(places)
        tally.found_in.update(one["dataset"] for one in where)
        record = {
            "dataset": chosen.name,
            "split": chosen.split,
            "row": row,
            "overlaps": _by_n(found),
            "fields": fields,
            "prompts": {name: p for name, p in prompts.items() if any(p["overlaps"].values())},
            "found": where[:_PLACES],
        }
        if len(tally.examples) < _EXAMPLES and found[ngrams[0]]:
            tally.examples.append(self._example(chosen, batch, row, texts, covered))
        return record

    def _where(self, places: list[int]) -> list[dict[str, Any]]:
        """Returns the training datasets with these matches, each with an example location."""
        wanted = np.array(places, np.int64)
        lows = np.searchsorted(self._places, wanted)
        highs = np.searchsorted(self._places, wanted, "right")
        firsts: dict[int, collections.Counter[int]] = {}
        runs: collections.Counter[int] = collections.Counter()
        times: collections.Counter[int] = collections.Counter()
        for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
            for number in range(low, high):
                dataset, first = int(self._dataset_of[number]), int(self._found.first[number])
                firsts.setdefault(dataset, collections.Counter())[first] += 1
                runs[dataset] += 1
                times[dataset] += int(self._found.counts[number])
        found = []
        for dataset in sorted(firsts, key=lambda one: (-runs[one], self._names[one])):
            # Of all first locations of the matches, choose the one that most matches share.
            place = min(firsts[dataset].items(), key=lambda one: (-one[1], one[0]))[0]
            number, record = place_of(place)
            source = self._training.sources[number]
            where = {"task": source.task, "split": source.split, "file": source.file}
            found.append(
                {
                    "dataset": self._names[dataset],
                    "runs": runs[dataset],
                    "times": times[dataset],
                    "where": {**where, "record": record, "source": number},
                }
            )
        return found

    def _example(
        self,
        chosen: EvaluationSet,
        batch: RowBatch,
        row: int,
        texts: list[int],
        covered: _Covered,
    ) -> dict[str, Any]:
        """Returns the row's text with the most overlap, and the training text that contains it."""
        n = self._index.settings.ngrams[0]
        found = [one for one in texts if covered.places.get(one)]
        text = max(found, key=lambda one: (covered.by_n[n][one], bool(batch.is_field[one])))
        part = batch.parts[text]
        where = self._where(sorted(set(covered.places[text])))[0]["where"]
        trained = self._text_at(where["source"], where["record"]) or ""
        mine, theirs = word_list(batch.texts[text]), word_list(trained)
        begin, other, length = longest_common(mine, theirs)
        return {
            "row": row,
            "part": part if batch.is_field[text] else chosen.prompts[part].name,
            "text": " ".join(mine[:_WORDS_SHOWN]),
            "same_words": " ".join(mine[begin : begin + length][:_WORDS_SHOWN]),
            "same": length,
            "training_text": " ".join(
                theirs[max(0, other - _WORDS_BESIDE) :][: length + 2 * _WORDS_BESIDE][:_WORDS_SHOWN]
            ),
            "where": where,
        }


def dataset_names(training: TrainingTexts) -> tuple[list[str], list[int]]:
    """Returns the names of the training datasets, and the dataset number of each source."""
    names = sorted({source.dataset for source in training.sources})
    numbers = {name: number for number, name in enumerate(names)}
    return names, [numbers[source.dataset] for source in training.sources]


def longest_common(one: list[str], other: list[str]) -> tuple[int, int, int]:
    """Finds the longest word sequence that two lists share: its start in each, and its length.

    >>> longest_common("a b c d".split(), "x b c y".split())
    (1, 1, 2)
    """
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    match = matcher.find_longest_match()
    return match.a, match.b, match.size

"""SeqIO tasks of translation, with T5's prefix and BLEU by sacreBLEU.

arguments = translation_task(folder_splits(Path("mt")), "en", "de")
seqio.TaskRegistry.add("mt_en_de", **arguments)

{"inputs": "translate English to German: Good morning.", "targets": "Guten Morgen."}

bleu = Bleu()
bleu(["Guten Morgen."], ["Guten Tag."])      # {"bleu": ...}, as t5's metric
bleu.signature()                             # nrefs:1|case:mixed|eff:no|tok:intl|...
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import babel
from sacrebleu.metrics.bleu import BLEU, BLEUScore

from t0.compat import gin
from t0.errors import UserError, unknown_name
from t0.sources.folders import Found
from t0.sources.translations import count_pairs, read_pairs
from t0.tasks.records import TEXT, Record, RecordSource, t5_features, tokenised


@gin.configurable("bleu", module="t0")
def tokenizer(tokenize: str = "intl") -> str:
    """Returns sacreBLEU's tokenizer (gin: `bleu.tokenize`): T5's, or 13a as in WMT's papers.

    Raises:
      UserError: if sacreBLEU has none of that name.
    """
    if tokenize not in BLEU.TOKENIZERS:
        raise unknown_name("tokenizer", tokenize, BLEU.TOKENIZERS, "(gin: bleu.tokenize)")
    return tokenize


class Bleu:
    """BLEU in percent over a whole corpus, with sacreBLEU's defaults but for the tokenizer.

    Args:
      tokenize: sacreBLEU's name of a tokenizer; None for what gin says.
    """

    __name__ = "bleu"

    def __init__(self, tokenize: str | None = None) -> None:
        self._tokenize = tokenize

    def __call__(self, targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
        """Returns {"bleu": value}."""
        return {"bleu": self._metric(targets, predictions)[1].score}

    def signature(self) -> str:
        """Returns sacreBLEU's signature, without which a BLEU says little."""
        metric, _ = self._metric(["."], ["."])
        return str(metric.get_signature())

    def _metric(self, targets: Sequence[str], predictions: Sequence[str]) -> tuple[BLEU, BLEUScore]:
        metric = BLEU(tokenize=self._tokenize or tokenizer())
        # It knows its signature after it has seen references.
        return metric, metric.corpus_score(list(predictions), [list(targets)])


def language_name(code: str) -> str:
    """Returns a language's English name, as T5's prefixes have it.

    >>> language_name("pt-BR")
    'Portuguese'

    Raises:
      UserError: if the code is none.
    """
    try:
        name = babel.Locale.parse(re.split("[-_]", code)[0]).english_name
    except (ValueError, babel.UnknownLocaleError) as error:
        raise UserError(
            f"'{code}' is no language code: name the sides of a translation by ISO 639, such as en"
            " and de."
        ) from error
    return name


def prefix(source: str, target: str) -> str:
    """Returns what stands before a sentence.

    >>> prefix("en", "de")
    'translate English to German: '
    """
    return f"translate {language_name(source)} to {language_name(target)}: "


def _records(splits: Mapping[str, Found], source: str, target: str, split: str) -> Iterator[Record]:
    before = prefix(source, target)
    for sentence, translation in read_pairs(splits[split], source, target):
        yield {"inputs": before + sentence, "targets": translation}


class PairSource(RecordSource):
    """The sentences of a dataset's files, from one language to another."""

    def __init__(self, splits: Mapping[str, Found], source: str, target: str) -> None:
        super().__init__(
            read=functools.partial(_records, splits, source, target),
            count=functools.cache(lambda split: count_pairs(splits[split])),
            splits=tuple(splits),
            signature={"inputs": TEXT, "targets": TEXT},
        )


def translation_task(splits: Mapping[str, Found], source: str, target: str) -> dict[str, Any]:
    """Returns the arguments of `seqio.TaskRegistry.add` for one direction of a dataset.

    Raises:
      UserError: if a language's code is none.
    """
    prefix(source, target)
    return {
        "source": PairSource(splits, source, target),
        "preprocessors": tokenised(),
        "output_features": t5_features(),
        "metric_fns": [Bleu()],
    }

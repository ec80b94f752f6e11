"""The measures of ranked choices equal scikit-learn's and SciPy's."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from t0.measures import rank_measures
from t0.measures.choice_lengths import best_by
from t0.measures.rank_measures import MEASURES, count_confusions
from t0.reports.example_scores import read_scores
from tests.reports.made_up_evaluations import Evaluation, random_lines


def draws():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        classes = int(rng.integers(2, 6))
        examples = int(rng.integers(1, 60))
        gold = rng.integers(0, rng.integers(1, classes + 1), examples)
        yield gold, rng.integers(0, rng.integers(1, classes + 1), examples), classes


def test_class_measures_equal_sklearn():
    for gold, predicted, classes in draws():
        confusion = count_confusions(gold, predicted, classes)
        everything = {"labels": range(classes), "zero_division": np.nan}
        expected = sklearn_metrics.precision_recall_fscore_support(gold, predicted, **everything)
        np.testing.assert_array_equal(rank_measures.class_shares(confusion), expected[:3])
        expected = sklearn_metrics.confusion_matrix(gold, predicted, labels=range(classes))
        np.testing.assert_array_equal(confusion, expected)
        macro = {"average": "macro", "zero_division": 0}
        for labels, measure in (
            (np.unique(gold), rank_measures.macro_f1),
            (range(classes), rank_measures.macro_f1_all_classes),
        ):
            expected = sklearn_metrics.f1_score(gold, predicted, labels=labels, **macro)
            assert measure(confusion) == pytest.approx(100 * expected)
        expected = sklearn_metrics.recall_score(gold, predicted, labels=np.unique(gold), **macro)
        assert rank_measures.balanced_accuracy(confusion) == pytest.approx(100 * expected)
        expected = sklearn_metrics.matthews_corrcoef(gold, predicted)
        assert rank_measures.matthews_correlation(confusion) == pytest.approx(100 * expected)


def test_matthews_correlation_of_two_classes_is_the_correlation_of_their_numbers():
    gold, predicted = np.array([0, 0, 1, 1, 1, 0]), np.array([0, 1, 1, 1, 0, 0])
    expected = 100 * np.corrcoef(gold, predicted)[0, 1]
    found = rank_measures.matthews_correlation(count_confusions(gold, predicted, 2))
    assert found == pytest.approx(expected)


def test_measures_of_outcomes_are_the_columns_of_a_report(tmp_path):
    lines = random_lines(60, [3], seed=4, skill=1.0)
    Evaluation(tmp_path).add("t", "d", "p", lines)
    values = read_scores(tmp_path / "scores" / "t_100.jsonl").measures
    assert [*values] == [measure.column for measure in MEASURES]
    gold, predicted = (np.array([line[key] for line in lines]) for key in ("gold", "prediction"))
    counts = np.bincount(predicted, minlength=3)
    assert values["majority_percent"] == pytest.approx(100 * np.bincount(gold).max() / 60)
    assert values["most_predicted_percent"] == pytest.approx(100 * counts.max() / 60)
    assert values["most_predicted_answer"] == f"choice {counts.argmax()}"
    assert values["prediction_entropy_bits"] == pytest.approx(stats.entropy(counts, base=2))
    accuracy = 100 * sklearn_metrics.accuracy_score(gold, predicted)
    assert values["accuracy_without_ties_percent"] == pytest.approx(accuracy)
    assert values["accuracy_by_tokens_percent"] == pytest.approx(accuracy)  # equal lengths
    assert values["decoded_exact_match_percent"] is None
    assert rank_measures.measure(None) == dict.fromkeys(values)


def test_best_choice_by_length():
    assert best_by([-2.0, -3.0], [1, 3]) == 1
    assert best_by([-2.0, -3.0], [2, 3]) == 0  # a tie
    assert best_by([-2.0, -3.0], [0, 1]) == 0

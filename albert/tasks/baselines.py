"""Baselines for models of texts: TF-IDF with logistic or ridge regression."""

from collections.abc import Sequence

import numpy as np


def tfidf_answers(
    train_texts: Sequence[str], train_labels: Sequence[str] | np.ndarray, texts: Sequence[str]
) -> np.ndarray:
    """Returns the labels predicted by logistic regression on TF-IDF of words and word pairs.

    Where a text may have several labels, `train_labels` and the result say whether it has each, [N, C].
    """
    # Imported here, because it takes a second.
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    regression = LogisticRegression(C=10.0, max_iter=1000)
    if np.ndim(train_labels) == 2:
        regression = OneVsRestClassifier(regression)
    elif len({*train_labels}) == 1:  # which logistic regression refuses
        return np.repeat(np.asarray(train_labels)[:1], len(texts))
    return _answers(regression, train_texts, train_labels, texts)


def tfidf_values(
    train_texts: Sequence[str], train_values: Sequence[float], texts: Sequence[str]
) -> np.ndarray:
    """Returns the numbers predicted by ridge regression."""
    from sklearn.linear_model import Ridge

    return _answers(Ridge(), train_texts, train_values, texts)


def _answers(regression, train_texts, train_answers, texts) -> np.ndarray:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    def fitted(**options):
        model = make_pipeline(TfidfVectorizer(sublinear_tf=True, **options), regression)
        return model.fit(list(train_texts), np.asarray(train_answers))

    try:
        model = fitted(ngram_range=(1, 2))
    except ValueError:  # no text has a word
        model = fitted(analyzer="char")
    return model.predict(list(texts))

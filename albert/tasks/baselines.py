"""A baseline for text classifiers: TF-IDF with logistic regression."""

from collections.abc import Sequence

import numpy as np


def tfidf_answers(
    train_texts: Sequence[str], train_labels: Sequence[str] | np.ndarray, texts: Sequence[str]
) -> np.ndarray | None:
    """Returns the labels predicted by logistic regression on TF-IDF of words and word pairs.

    Where a text may have several labels, `train_labels` and the result say whether it has each, [N, C].
    None if the texts have no words.
    """
    # Imported here, because it takes a second.
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline

    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
    regression = LogisticRegression(C=10.0, max_iter=1000)
    if np.ndim(train_labels) == 2:
        regression = OneVsRestClassifier(regression)
    model = make_pipeline(words, regression)
    try:
        model.fit(list(train_texts), np.asarray(train_labels))
    except ValueError:  # an empty vocabulary
        return None
    return model.predict(list(texts))

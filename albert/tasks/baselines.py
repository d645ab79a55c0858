"""A baseline for text classifiers: TF-IDF with logistic regression."""

from collections.abc import Sequence

import numpy as np


def tfidf_answers(
    train_texts: Sequence[str], train_labels: Sequence[str], texts: Sequence[str]
) -> np.ndarray | None:
    """Returns the labels predicted by logistic regression on TF-IDF of words and word pairs.

    None if scikit-learn is not installed, or the texts have no words.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
    except ImportError:
        return None
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
    model = make_pipeline(words, LogisticRegression(C=10.0, max_iter=1000))
    try:
        model.fit(list(train_texts), list(train_labels))
    except ValueError:  # an empty vocabulary
        return None
    return model.predict(list(texts))

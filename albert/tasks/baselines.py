"""A baseline for models of texts: TF-IDF with logistic or ridge regression."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

Rows = Sequence[tuple[str, str | None]]  # a text, and the second one of a pair
# Thai, Lao, Burmese, Khmer, Japanese and Chinese have no blanks between words: each character is one.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff"
_WORD = rf"[{_UNSPACED}]|[^\W{_UNSPACED}]{{2,}}"


def tfidf_answers(train_rows: Rows, answers: Sequence[Any] | np.ndarray, rows: Rows) -> np.ndarray:
    """Returns the answers to rows by a regression on TF-IDF: ridge for floating-point numbers, else logistic.

    Where a text may have several labels, `answers` and the result say whether it has each, [N, C].
    """
    # Imported here, because it takes a second.
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    answers = np.asarray(answers)
    regression = Ridge() if answers.dtype.kind == "f" else LogisticRegression(C=10.0, max_iter=1000)
    if answers.ndim == 2:
        regression = OneVsRestClassifier(regression)
    elif len({*answers.tolist()}) == 1:  # which logistic regression refuses
        return np.repeat(answers[:1], len(rows))
    given, asked = _features(train_rows, rows)
    with warnings.catch_warnings():  # of labels that are rare, or that every text has
        warnings.simplefilter("ignore")
        return regression.fit(given, answers).predict(asked)


def _features(*parts: Rows) -> list[Any]:
    """Returns for rows to learn from, and for others, TF-IDF of their words and word pairs.

    Of pairs of texts also the similarity of the two: the cosine of TF-IDF of three characters.
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    joined = [[" ".join(filter(None, row)) for row in rows] for rows in parts]
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=_WORD)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3), sublinear_tf=True)
    try:
        words.fit(joined[0])
    except ValueError:  # no text has a word
        words = characters.fit(joined[0])
    found = [words.transform(texts) for texts in joined]
    if not any(second for _, second in parts[0]):
        return found
    characters.fit(joined[0])
    sides = [[characters.transform([row[i] or "" for row in rows]) for i in (0, 1)] for rows in parts]
    return [hstack([x, a.multiply(b).sum(1).reshape(-1, 1)]) for x, (a, b) in zip(found, sides, strict=True)]

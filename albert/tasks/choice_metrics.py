"""Which class a model chooses. Accuracies, prediction files and answers all use this rule."""

import numpy as np


def likeliest(logits: np.ndarray) -> np.ndarray:
    """Returns the class [...] with the highest of the logits [..., C]; the first of equal ones.

    Give logits, not probabilities: float32 can round different logits to equal probabilities.
    """
    return np.argmax(logits, axis=-1)

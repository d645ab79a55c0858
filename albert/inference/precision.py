"""Measures what other precisions would gain and change. On processors with instructions for bfloat16."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from albert import engines
from albert.inference.fine_tuned import TaskPredictor

FEWEST = 50  # inputs: fewer say little


def compare(
    predictor: TaskPredictor, inputs: Sequence[Any], seconds: float
) -> dict[str, tuple[float, list[Any]]]:
    """Returns {dtype: (its speed over that of float32, its answers to the first inputs)}.

    float32 computes for about these seconds, the others as many inputs. Empty on other processors.
    """
    from albert.runtime import workers  # only here: every command would take longer to start

    if not workers.bfloat16_gain():
        return {}
    encoded, answers = list(predictor.encode(inputs)), {}
    predictors = {
        dtype: dataclasses.replace(predictor, session=dataclasses.replace(predictor.session, dtype=dtype))
        for dtype in ("float32", "int8", *["bfloat16"] * engines.is_installed("openvino"))
    }

    def seconds_of(dtype: str, count: int) -> float:
        begin = time.perf_counter()
        answers[dtype] = list(predictors[dtype].answers(encoded[:count]))
        return time.perf_counter() - begin

    for dtype in predictors:  # loads the models
        seconds_of(dtype, 1)
    count = max(FEWEST, int(seconds / 2 / seconds_of("float32", FEWEST) * FEWEST))
    turns = [{dtype: seconds_of(dtype, count) for dtype in predictors} for _ in range(2)]
    times = {dtype: min(turn[dtype] for turn in turns) for dtype in predictors}
    return {dtype: (times["float32"] / times[dtype], answers[dtype]) for dtype in predictors}

"""SQuAD windows as records. No TensorFlow.

Legend: L sequence.
"""

import dataclasses
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from albert.errors import DataError
from albert.records.examples import FeatureSpec
from albert.storage import files
from albert.tasks.fine_tuning_data import RecordKeeper
from albert.tasks.squad.features import SquadExample, Window, make_windows

# The original's. Questions are shuffled once, before they are split into windows.
_SHUFFLE_SEED = 12345
_ROWS = ("input_ids", "input_mask", "segment_ids", "p_mask")


def record_spec(max_seq_length: int, has_labels: bool) -> FeatureSpec:
    """Returns the record of one window, as the original writes it."""
    labels = ("start_positions", "end_positions", "is_impossible") if has_labels else ()
    return FeatureSpec(
        {"unique_ids": ("int64", None)}
        | {name: ("int64", max_seq_length) for name in _ROWS}
        | {name: ("int64", None) for name in labels}
    )


@dataclasses.dataclass(frozen=True)
class WindowKeeper(RecordKeeper):
    """Splits questions into windows, and writes their record files, each only once."""

    doc_stride: int = 128  # tokens between the beginnings of two windows
    max_query_length: int = 64  # longest question, in tokens

    def training_records(self, examples: Sequence[SquadExample], origin: str) -> str:
        """Returns the record file of the training windows of the file `origin`."""
        shuffled = list(examples)
        random.Random(_SHUFFLE_SEED).shuffle(shuffled)
        return self._keep(self._windows(shuffled, True), origin, is_training=True)

    def prediction_records(
        self, examples: Sequence[SquadExample], origin: str
    ) -> tuple[str, list[Window]]:
        """Returns (record file, windows); arguments are as of `training_records`.

        Raises:
          DataError: no passage can be aligned with its tokens.
        """
        windows = list(self._windows(examples, False))
        if not windows:
            raise DataError(f"{examples[0].place}: neither this passage nor any other can be aligned "
                            "with its tokens: --predict_file has no text to search")
        return self._keep(windows, origin, is_training=False), windows

    def _windows(self, examples: Sequence[SquadExample], is_training: bool) -> Iterator[Window]:
        return make_windows(
            examples, self.tokenizer, is_training=is_training,
            max_seq_length=self.max_seq_length, doc_stride=self.doc_stride,
            max_query_length=self.max_query_length,
        )

    def _keep(self, windows: Iterable[Window], origin: str, is_training: bool) -> str:
        name = f"squad_{'train' if is_training else 'predict'}"
        spec = record_spec(self.max_seq_length, is_training)
        return self.keep(name, window_rows(windows, is_training), spec, {
            "input file": files.sha256(origin), "doc_stride": self.doc_stride,
            "max_query_length": self.max_query_length,
        })


def window_rows(windows: Iterable[Window], has_labels: bool) -> Iterator[dict[str, Any]]:
    """Yields the record of each window, as `record_spec` lays it out."""
    for window in windows:
        row = {name: getattr(window, name) for name in _ROWS} | {"unique_ids": window.unique_id}
        if has_labels:
            row |= {
                "start_positions": window.start_position, "end_positions": window.end_position,
                "is_impossible": int(window.is_impossible),
            }
        yield row

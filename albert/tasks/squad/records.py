"""SQuAD windows as records, and as the file that prediction needs beside them. No TensorFlow.

Legend: L sequence.
"""

import dataclasses
import gzip
import json
import logging
import os
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albert.data import features, files, records
from albert.data.records import FeatureSpec
from albert.errors import DataError
from albert.tasks.squad.features import SquadExample, Window, make_windows

if TYPE_CHECKING:
    from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")

# Of the original: questions are shuffled once before they are cut into windows.
_SHUFFLE_SEED = 12345


@dataclasses.dataclass(frozen=True)
class WindowSettings:
    """How passages are cut; the flags of the same names."""

    max_seq_length: int = 384  # L, question and passage and [CLS], [SEP], [SEP]
    doc_stride: int = 128  # tokens between the beginnings of two windows
    max_query_length: int = 64  # longest question, in tokens


def record_spec(max_seq_length: int, has_labels: bool) -> FeatureSpec:
    """Returns the record of one window, as the original writes it."""
    rows = ("input_ids", "input_mask", "segment_ids", "p_mask")
    labels = ("start_positions", "end_positions", "is_impossible") if has_labels else ()
    return FeatureSpec(
        {"unique_ids": ("int64", None)}
        | {name: ("int64", max_seq_length) for name in rows}
        | {name: ("int64", None) for name in labels}
    )


def training_records(
    examples: Sequence[SquadExample],
    tokenizer: "FullTokenizer",
    settings: WindowSettings,
    directory: str,
    depends_on: Mapping[str, Any],
    path: str | None,
) -> str:
    """Returns the record file of the training windows, written if need be."""
    shuffled = list(examples)
    random.Random(_SHUFFLE_SEED).shuffle(shuffled)
    windows = make_windows(
        shuffled, tokenizer, is_training=True, **dataclasses.asdict(settings)
    )
    spec = record_spec(settings.max_seq_length, True)
    if features.has_no_manifest(path):
        # The original's says nothing of its origin, and is taken as it is.
        log.info("features from %s", path)
        return path
    if path:
        return features.named_records(path, window_rows(windows, True), spec, depends_on)
    return features.cached_records(
        directory, "squad_train", window_rows(windows, True), spec, depends_on
    )


def prediction_records(
    examples: Sequence[SquadExample],
    tokenizer: "FullTokenizer",
    settings: WindowSettings,
    directory: str,
    depends_on: Mapping[str, Any],
    path: str | None,
    left_path: str | None,
) -> tuple[str, list[Window]]:
    """Returns (record file, windows); both are read back if they were made before.

    `left_path` keeps what of the windows is not in the records (compressed
    JSON, where the original pickled).

    Raises:
      DataError: a named file was made from something else, or does not tell from what.
    """
    if path:
        records.refuse_foreign(path)
    key = features.digest(depends_on)
    left_path = left_path or os.path.join(directory, f"squad_predict-{key}.left.json.gz")
    windows = read_windows(left_path, key)
    if windows is None:
        windows = list(
            make_windows(examples, tokenizer, is_training=False, **dataclasses.asdict(settings))
        )
        if not windows:
            raise DataError(
                f"{examples[0].place}: neither this passage nor any other can be aligned with its "
                "tokens: --predict_file has no text to search"
            )
        write_windows(left_path, windows, key)
    spec = record_spec(settings.max_seq_length, False)
    rows = window_rows(windows, False)
    if path:
        return features.named_records(path, rows, spec, depends_on), windows
    return features.cached_records(directory, "squad_predict", rows, spec, depends_on), windows


def window_rows(windows: Iterable[Window], has_labels: bool) -> Iterator[dict[str, Any]]:
    """Yields the record of each window, as `record_spec` lays it out."""
    for window in windows:
        row = {
            "unique_ids": window.unique_id, "input_ids": window.input_ids,
            "input_mask": window.input_mask, "segment_ids": window.segment_ids,
            "p_mask": window.p_mask,
        }
        if has_labels:
            row |= {
                "start_positions": window.start_position, "end_positions": window.end_position,
                "is_impossible": int(window.is_impossible),
            }
        yield row


# What a damaged gzip file raises, or JSON that is not of `write_windows`.
_UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error,
)


def write_windows(path: str, windows: Sequence[Window], key: str) -> None:
    """Publishes windows for `read_windows`; `key` says what they were made from."""
    files.make_dirs(os.path.dirname(os.path.abspath(path)))
    value = {"key": key, "windows": [dataclasses.asdict(window) for window in windows]}
    with files.atomic_write(path, "wb") as stream:
        # Without a time in it, so that the same windows are the same bytes.
        stream.write(gzip.compress(json.dumps(value).encode(), mtime=0))


def read_windows(path: str, key: str) -> list[Window] | None:
    """Returns the windows of a file, or None if it is absent.

    Raises:
      DataError: it is damaged, or of something else than `key`.
    """
    if not os.path.lexists(path):
        return None
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            value = json.load(stream)
        found = value["key"]
        windows = [_window(fields) for fields in value["windows"]] if found == key else []
    except _UNREADABLE as error:
        raise DataError(
            f"{path} is not a file of windows of this toolkit (a pickle of the original is never "
            f"opened): remove it, or name another ({type(error).__name__})"
        ) from error
    if found != key:
        raise DataError(
            f"{path} was made from another file, tokenizer or length: remove it, or name another"
        )
    log.info("windows from %s", path)
    return windows


def _window(fields: dict[str, Any]) -> Window:
    contexts = {int(place): bool(is_it) for place, is_it in fields["token_is_max_context"].items()}
    return Window(**(fields | {"token_is_max_context": contexts}))

"""TFRecord files and the manifest beside each: what is in them, and how many.

A TFRecord cut exactly between two records reads without any error; only the
count in the manifest can tell. Files without a manifest (made by the original
toolkit) are read too: their records are counted from the framing.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """Fixed-length features of one record, in the order in which they are written."""

    # name -> (dtype "int64" or "float32", length); length None is a scalar.
    features: Mapping[str, tuple[str, int | None]]

"""Computes embeddings of texts: one per line, and optionally one per token.

  python -m albert.extract_features --model=small_en \\
      --input_file=sentences.txt --output_file=vectors.npz

--output_file ends in .jsonl (one object a line: text, vector, and with --tokens
the tokens and their vectors) or in .npz (vectors [N, D]; with --tokens also
token_vectors [T, D] and input_ids [T] of all lines concatenated, and offsets
[N + 1]: line i is offsets[i] to offsets[i + 1] of these). Lines keep their order.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from albert.cli import answering, flags
from albert.errors import FlagError
from albert.inference.embedding import POOLINGS, Embedder
from albert.inference.session import numbers
from albert.runtime.progress import Progress
from albert.storage import files

log = logging.getLogger("albert")


def define_flags(values: flags.FlagValues) -> None:
    answering.define_flags(values)
    flags.define("path", values, "output_file", None,
                 "File for the vectors, *.jsonl or *.npz. Required.", use="output")
    flags.define("enum", values, "pooling", "mean",
                 "Vector of a line: the mean over all tokens, [CLS] and [SEP] included, the output "
                 "at [CLS], or the pooled output, a trained layer on [CLS].",
                 enum_values=POOLINGS)
    flags.define("string", values, "layers", "-1",
                 "Comma-separated layers whose outputs are concatenated, for cls, mean and --tokens: "
                 "1 is the first, -1 the last.")
    flags.define("bool", values, "tokens", False, "Also write the vectors of all tokens.")


def _check(values: flags.FlagValues) -> list[int]:
    """Returns --layers as a list."""
    answering.check_flags(values)
    flags.require(values, "output_file")
    if not values.output_file.endswith((".jsonl", ".npz")):
        raise FlagError(f"--output_file={values.output_file} ends neither in .jsonl nor in .npz")
    try:
        layers = [int(part) for part in values.layers.split(",")]
    except ValueError:
        layers = []
    if not layers or 0 in layers:
        raise FlagError(f"--layers={values.layers} is not a list of numbers such as -1,-2")
    if values.pooling == "pooled" and layers != [-1] and not values.tokens:
        raise FlagError("--layers has no effect on --pooling=pooled: give --pooling=mean or cls")
    return layers


def main(values: flags.FlagValues) -> None:
    layers = _check(values)
    texts = answering.read_texts(values.input_file)
    opened = answering.open_model(values)
    embedder = Embedder(opened, values.pooling, layers, values.tokens)
    progress = Progress("embedded", len(texts), "lines")
    with _writer(values.output_file, values.tokens) as write:
        for text, result in zip(texts, embedder.predict(texts, progress), strict=True):
            write(text, result)
    log.info("wrote %s vectors: %s", f"{len(texts):,}", values.output_file)


@contextlib.contextmanager
def _writer(path: str, with_tokens: bool) -> Iterator[Callable[[str, Mapping[str, Any]], None]]:
    """Yields a function that writes a text with its outputs; publishes the file at the end."""
    if path.endswith(".jsonl"):
        with files.atomic_write(path) as stream:
            yield lambda text, result: stream.write(_json_line(text, result) + "\n")
        return
    results: list[Mapping[str, Any]] = []
    yield lambda text, result: results.append(result)
    arrays = {"vectors": np.stack([result["vector"] for result in results])}
    if with_tokens:
        arrays |= {
            "token_vectors": np.concatenate([result["tokens"] for result in results]),
            "input_ids": np.concatenate([result["input_ids"] for result in results]),
            "offsets": np.cumsum([0, *(len(result["input_ids"]) for result in results)]),
        }
    with files.atomic_write(path, "wb") as stream:
        np.savez(stream, **arrays)


def _json_line(text: str, result: Mapping[str, Any]) -> str:
    line = {"text": text, "vector": numbers(result["vector"])}
    if "tokens" in result:
        line["tokens"] = [
            {"piece": token, "vector": numbers(vector)}
            for token, vector in zip(result["pieces"], result["tokens"], strict=True)
        ]
    return json.dumps(line, ensure_ascii=False)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

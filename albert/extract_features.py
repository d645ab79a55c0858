"""Turns texts into vectors: one for each line, and if wanted one for each of its pieces.

  python -m albert.extract_features --model=albert_base --pooling=mean \\
      --input_file=sentences.txt --output_file=vectors.npz

--output_file ends in .jsonl (one object a line: text, vector, and with --tokens
the pieces and their vectors) or in .npz (vectors [N, D]; with --tokens also
token_vectors [T, D] and input_ids [T] of all lines one after another, and offsets
[N + 1]: line i has the places offsets[i] to offsets[i + 1]). Lines keep their order.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert.cli import flags
from albert.data import files
from albert.errors import FlagError
from albert.inference import session as inference

log = logging.getLogger("albert")

POOLINGS = ("pooled", "cls", "mean")


def define_flags(values: flags.FlagValues) -> None:
    inference.define_flags(values)
    flags.define("string", values, "output_file", None,
                 "Where the vectors go, *.jsonl or *.npz. Required.")
    flags.define("enum", values, "pooling", "pooled",
                 "A line's vector: the pooled output (a trained layer on [CLS]), the output at "
                 "[CLS], or the mean over all places, [CLS] and [SEP] among them.",
                 enum_values=POOLINGS)
    flags.define("string", values, "layers", "-1",
                 "Layers for cls, mean and --tokens, separated by commas: 1 is the first, -1 the "
                 "last; of several the vectors are put end to end.")
    flags.define("bool", values, "tokens", False, "Write the vectors of all pieces too.")


def _check(values: flags.FlagValues) -> list[int]:
    """Returns the layers as they were given."""
    inference.check_flags(values)
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
    texts = inference.read_texts(values.input_file)
    opened = inference.open_model(values)
    count = opened.config.num_hidden_layers * opened.config.inner_group_num
    for layer in layers:
        if abs(layer) > count:
            raise FlagError(f"--layers={values.layers}: {values.model} has {count} layers")
    # From the end: where layers are in a loop, only the last one is there.
    indices = [layer if layer < 0 else layer - 1 - count for layer in layers]
    computer = inference.Computer(
        _vectors(opened, values, indices), values.batch_size, opened.max_seq_length
    )
    with _writer(values.output_file, values.tokens) as write:
        for text, result in zip(texts, _results(texts, opened, computer), strict=True):
            write(text, result)
    log.info("%s vectors: %s", f"{len(texts):,}", values.output_file)


def _vectors(opened: inference.Opened, values: flags.FlagValues, layers: Sequence[int]) -> Callable:
    """Returns the function from a batch to `vector` [B, D], with --tokens also `tokens` [B, L, D]."""
    import tensorflow as tf

    from albert import modeling
    from albert.formats import pretrained
    from albert.model.encoder_options import EncoderOptions

    options = EncoderOptions(
        engine="graph_loop" if set(layers) == {-1} else "unrolled",
        needed_outputs_only=values.pooling == "pooled" and not values.tokens,
    )
    model = pretrained.load(
        modeling.AlbertModel, opened.path, options, complete=values.pooling == "pooled"
    )

    def vectors(batch):
        outputs = model(batch, training=False)
        if options.needed_outputs_only:
            return {"vector": tf.cast(outputs["pooled_output"], tf.float32)}
        chosen = tf.concat([outputs["encoder_outputs"][i] for i in layers], axis=-1)
        chosen = tf.cast(chosen, tf.float32)
        if values.pooling == "pooled":
            vector = tf.cast(outputs["pooled_output"], tf.float32)
        elif values.pooling == "cls":
            vector = chosen[:, 0]
        else:
            mask = tf.cast(batch["input_mask"], tf.float32)[:, :, None]
            vector = tf.reduce_sum(chosen * mask, axis=1) / tf.reduce_sum(mask, axis=1)
        return {"vector": vector} | ({"tokens": chosen} if values.tokens else {})

    return vectors


def _results(
    texts: Sequence[str], opened: inference.Opened, computer: inference.Computer
) -> Iterator[dict[str, Any]]:
    """Yields each text's outputs, `input_ids` and `pieces`, in the order of the texts."""
    from albert.training import summaries

    progress = summaries.Progress("lines", 0, len(texts), unit="lines")
    done = num_cut = 0
    for start in range(0, len(texts), inference.CHUNK):
        encoded = opened.tokenizer.encode_batch(texts[start : start + inference.CHUNK])
        rows = [inference.row(ids, None, opened) for ids in encoded]
        num_cut += sum(row["is_cut"] for row in rows)
        results: list[Any] = [None] * len(rows)
        for index, outputs in computer([inference.model_inputs(row) for row in rows]):
            ids = rows[index]["input_ids"]
            result = {**outputs, "input_ids": ids}
            if "tokens" in outputs:
                result["tokens"] = outputs["tokens"][: len(ids)]
                result["pieces"] = opened.tokenizer.convert_ids_to_tokens(ids)
            results[index] = result
            done += 1
            progress.update(done)
        yield from results
    progress.clear()
    inference.report_cut(num_cut, opened, "lines")


@contextlib.contextmanager
def _writer(path: str, with_tokens: bool) -> Iterator[Callable[[str, Mapping[str, Any]], None]]:
    """Yields the function that takes each text with its outputs; publishes at the end."""
    if path.endswith(".jsonl"):
        with files.atomic_write(path) as stream:
            yield lambda text, result: stream.write(_as_json(text, result) + "\n")
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


def _as_json(text: str, result: Mapping[str, Any]) -> str:
    line = {"text": text, "vector": inference.numbers(result["vector"])}
    if "tokens" in result:
        line["tokens"] = [
            {"piece": piece, "vector": inference.numbers(vector)}
            for piece, vector in zip(result["pieces"], result["tokens"], strict=True)
        ]
    return json.dumps(line, ensure_ascii=False)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

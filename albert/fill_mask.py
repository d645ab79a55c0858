"""Tells what a pretrained ALBERT puts in the place of each [MASK] of a text.

  python -m albert.fill_mask --model=albert_base "Hello I'm a [MASK] model."

Texts are arguments, lines of --input_file, or lines of the standard input. For each
[MASK] the likeliest pieces come with their probabilities, as a table or, with
--format=json, as one JSON object a text.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert import tokenization
from albert.albert_tokenizer import AlbertTokenizer
from albert.cli import flags
from albert.errors import DataError, FlagError
from albert.inference import session as inference

log = logging.getLogger("albert")

MASK = "[MASK]"


def define_flags(values: flags.FlagValues) -> None:
    inference.define_flags(values)
    flags.define("integer", values, "top_k", 5, "Pieces told for each [MASK].", least=1)
    flags.define("enum", values, "format", "text", "Table or JSON lines.",
                 enum_values=["text", "json"])


def main(values: flags.FlagValues, texts: list[str]) -> None:
    inference.check_flags(values)
    if texts and values.input_file != inference.STDIN:
        raise FlagError("give texts as arguments or in --input_file, not both")
    places = [f"argument {i}" for i in range(1, len(texts) + 1)]
    if not texts:
        name = inference.source_name(values.input_file)
        lines = enumerate(inference.read_texts(values.input_file), start=1)
        found = [(f"{name}:{i}", line) for i, line in lines if line.strip()]
        if not found:
            raise DataError(f"{name}: nothing in it")
        places, texts = zip(*found, strict=True)
    for place, text in zip(places, texts, strict=True):
        if MASK not in text:
            raise DataError(f"{place}: no {MASK} in the text: {text!r:.80}")
        if tokenization.scrub_surrogates(text) != text:  # what Python makes of other bytes
            raise DataError(f"{place}: not UTF-8 text: {text!r:.80}")
    opened = inference.open_model(values)
    if values.top_k > opened.config.vocab_size:
        raise FlagError(
            f"--top_k={values.top_k}: there are {opened.config.vocab_size} pieces in all"
        )
    for text, found in zip(texts, fill(opened, texts, places, values), strict=True):
        as_text = _as_json if values.format == "json" else _as_table
        inference.print_line(as_text(text, found))


def fill(
    opened: inference.Opened,
    texts: Sequence[str],
    places: Sequence[str],
    values: flags.FlagValues,
) -> list[list[list[dict[str, Any]]]]:
    """Returns for each text, for each [MASK], its likeliest pieces with their probabilities."""
    import tensorflow as tf

    from albert import modeling
    from albert.formats import pretrained
    from albert.model.encoder_options import EncoderOptions

    tokenizer = AlbertTokenizer(opened.tokenizer, opened.max_seq_length)
    rows = [_row(tokenizer, text, place) for text, place in zip(texts, places, strict=True)]
    most = max(len(row["masked_lm_positions"]) for row in rows)
    for row in rows:
        row["masked_lm_positions"] = np.pad(
            row["masked_lm_positions"], (0, most - len(row["masked_lm_positions"]))
        )[:, None]  # [P, 1], which is no row of places
    model = pretrained.load(
        modeling.AlbertForMaskedLM, opened.path, EncoderOptions(engine="graph_loop"), complete=True
    )

    def likeliest(batch):
        positions = batch["masked_lm_positions"][..., 0]
        outputs = model({**batch, "masked_lm_positions": positions}, training=False)
        logits = tf.cast(outputs["prediction_logits"], tf.float32)
        ids = tf.math.top_k(logits, values.top_k).indices  # probabilities may be equal
        return {"ids": ids, "probabilities": tf.gather(tf.nn.softmax(logits), ids, batch_dims=2)}

    computer = inference.Computer(likeliest, values.batch_size, opened.max_seq_length)
    results: list[Any] = [None] * len(rows)
    for index, found in computer(rows):
        count = texts[index].count(MASK)
        results[index] = [
            _pieces(opened.tokenizer, ids, probabilities)
            for ids, probabilities in zip(
                found["ids"][:count], found["probabilities"][:count], strict=True
            )
        ]
    return results


def _row(tokenizer: AlbertTokenizer, text: str, place: str) -> dict[str, np.ndarray]:
    length, most = len(tokenizer.encode(text)), tokenizer.model_max_length
    if length > most:
        raise DataError(f"{place}: {length} pieces with [CLS] and [SEP], {most} are the most")
    row = {name: values[0] for name, values in tokenizer(text).items()}
    (row["masked_lm_positions"],) = np.nonzero(row["input_ids"] == tokenizer.tokenizer.mask_id)
    return row


def _pieces(tokenizer, ids: np.ndarray, probabilities: np.ndarray) -> list[dict[str, Any]]:
    pieces = tokenizer.convert_ids_to_tokens(ids)
    return [
        {"piece": piece, "id": int(i), "probability": p}
        for piece, i, p in zip(pieces, ids, inference.numbers(probabilities), strict=True)
    ]


def _as_json(text: str, found: list[list[dict[str, Any]]]) -> str:
    return json.dumps({"text": text, "masks": found}, ensure_ascii=False)


def _as_table(text: str, found: list[list[dict[str, Any]]]) -> str:
    lines = [text]
    for number, pieces in enumerate(found, start=1):
        lines.append(f"  {MASK} {number}")
        lines += [f"    {p['probability']:.4f}  {p['piece']}" for p in pieces]
    return "\n".join(lines)


cli = flags.command(__doc__, define_flags, main, takes_arguments=True)

if __name__ == "__main__":
    cli()

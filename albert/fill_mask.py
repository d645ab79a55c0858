"""Tells what a pretrained ALBERT puts in the place of each [MASK] of a text.

  python -m albert.fill_mask --model=albert_base "Hello I'm a [MASK] model."

Texts are arguments, lines of --input_file, or lines of the standard input. For each
[MASK] the likeliest pieces come with their probabilities, as a table or, with
--format=json, as one JSON object a text.
"""

import json
from typing import Any

from albert import tokenization
from albert.cli import flags
from albert.errors import DataError, FlagError
from albert.inference import session
from albert.inference.masks import MASK, likeliest_pieces


def define_flags(values: flags.FlagValues) -> None:
    session.define_flags(values)
    flags.define("integer", values, "top_k", 5, "Pieces told for each [MASK].", least=1)
    flags.define("enum", values, "format", "text", "Table or JSON lines.",
                 enum_values=["text", "json"])


def main(values: flags.FlagValues, texts: list[str]) -> None:
    session.check_flags(values)
    if texts and values.input_file != session.STDIN:
        raise FlagError("give texts as arguments or in --input_file, not both")
    places = [f"argument {i}" for i in range(1, len(texts) + 1)]
    if not texts:
        name = session.source_name(values.input_file)
        lines = enumerate(session.read_texts(values.input_file), start=1)
        found = [(f"{name}:{i}", line) for i, line in lines if line.strip()]
        if not found:
            raise DataError(f"{name}: nothing in it")
        places, texts = zip(*found, strict=True)
    for place, text in zip(places, texts, strict=True):
        if MASK not in text:
            raise DataError(f"{place}: no {MASK} in the text: {text!r:.80}")
        if tokenization.scrub_surrogates(text) != text:  # what Python makes of other bytes
            raise DataError(f"{place}: not UTF-8 text: {text!r:.80}")
    opened = session.open_model(values)
    if values.top_k > opened.source.config.vocab_size:
        raise FlagError(
            f"--top_k={values.top_k}: there are {opened.source.config.vocab_size} pieces in all"
        )
    as_text = _masks_as_json if values.format == "json" else _as_table
    # All of them, before the first is told.
    answers = list(likeliest_pieces(opened, texts, places, values.top_k))
    for text, found in zip(texts, answers, strict=True):
        print(as_text(text, found), flush=True)


def _masks_as_json(text: str, found: list[list[dict[str, Any]]]) -> str:
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

"""Tells what a pretrained ALBERT puts in the place of each [MASK] of a text.

  python -m albert.fill_mask --model=albert_base "Hello I'm a [MASK] model."

Texts are arguments, lines of --input_file, or lines of the standard input. For each
[MASK] the likeliest pieces come with their probabilities, as a table or, with
--format=json, as one JSON object a text. An empty line has no masks.
"""

import json
from typing import Any

from albert import tokenization
from albert.cli import answering, flags
from albert.errors import DataError, FlagError
from albert.inference.masks import MASK, MaskFiller, require_mask


def define_flags(values: flags.FlagValues) -> None:
    answering.define_flags(values)
    flags.define("integer", values, "top_k", 5, "Pieces told for each [MASK].", lower_bound=1)
    flags.define("enum", values, "format", "text", "Table or JSON lines.",
                 enum_values=["text", "json"])


def main(values: flags.FlagValues, texts: list[str]) -> None:
    answering.check_flags(values)
    if texts and values.input_file != answering.STDIN:
        raise FlagError("give texts as arguments or in --input_file, not both")
    origin, are_lines = "argument ", not texts
    if are_lines:
        name = answering.source_name(values.input_file)
        origin, texts = f"{name}:", answering.read_texts(values.input_file)
        if not any(map(str.strip, texts)):
            raise DataError(f"{name}: nothing in it")
    filled = [i for i, text in enumerate(texts) if text.strip() or not are_lines]
    chosen, places = [texts[i] for i in filled], [f"{origin}{i + 1}" for i in filled]
    for text, place in zip(chosen, places, strict=True):
        require_mask(text, place)
        if tokenization.scrub_surrogates(text) != text:  # what Python makes of other bytes
            raise DataError(f"{place}: not UTF-8 text: {text!r:.80}")
    opened = answering.open_model(values)
    if values.top_k > opened.source.config.vocab_size:
        raise FlagError(
            f"--top_k={values.top_k}: there are {opened.source.config.vocab_size} pieces in all"
        )
    as_text = _masks_as_json if values.format == "json" else _as_table
    # All of them, before the first is told.
    filler = MaskFiller(opened, values.top_k)
    answers = dict(zip(filled, filler.fill(chosen, places), strict=True))
    for i, text in enumerate(texts):
        print(as_text(text, answers.get(i, [])), flush=True)


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

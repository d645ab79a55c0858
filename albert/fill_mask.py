"""Prints the tokens that a pretrained ALBERT predicts for each [MASK] of a text.

  python -m albert.fill_mask --model=albert_base "Hello I'm a [MASK] model."

Texts are arguments, lines of --input_file, or lines of the standard input. For each
[MASK] it prints the most likely tokens with their probabilities, as a table or, with
--format=json, as one JSON object per text. An empty line has no masks.
"""

import json
from typing import Any

from albert import tokenization
from albert.cli import answering, flags
from albert.errors import DataError, FlagError
from albert.inference.mask_filling import MASK, MaskFiller, require_mask


def define_flags(values: flags.FlagValues) -> None:
    answering.define_flags(values)
    flags.define("integer", values, "top_k", 5, "Tokens to print for each [MASK].", lower_bound=1)
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
    inputs = [(texts[i], f"{origin}{i + 1}") for i in filled]
    for text, place in inputs:
        require_mask(text, place)
        if tokenization.scrub_surrogates(text) != text:  # Python's stand-ins for invalid bytes
            raise DataError(f"{place}: not UTF-8 text: {text!r:.80}")
    opened = answering.open_model(values)
    as_text = _masks_as_json if values.format == "json" else _as_table
    # Compute all answers before printing the first.
    answers = dict(zip(filled, MaskFiller(opened, values.top_k).predict(inputs), strict=True))
    for i, text in enumerate(texts):
        print(as_text(text, answers.get(i, [])), flush=True)


def _masks_as_json(text: str, masks: list[list[dict[str, Any]]]) -> str:
    return json.dumps({"text": text, "masks": masks}, ensure_ascii=False)


def _as_table(text: str, masks: list[list[dict[str, Any]]]) -> str:
    lines = [text]
    for number, tokens in enumerate(masks, start=1):
        lines.append(f"  {MASK} {number}")
        lines += [f"    {one['probability']:.4f}  {one['piece']}" for one in tokens]
    return "\n".join(lines)


cli = flags.command(__doc__, define_flags, main, takes_arguments=True)

if __name__ == "__main__":
    cli()

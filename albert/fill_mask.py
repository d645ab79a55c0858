"""Prints the tokens that a pretrained ALBERT predicts for each [MASK] of a text.

  python -m albert.fill_mask --model=small_en "The boys [MASK] playing in the garden."

Texts are arguments, lines of --input_file, or lines of the standard input. For each
[MASK] it prints the likeliest tokens with their probabilities, as a table or, with
--format=json, as one JSON object per text. An empty line has no masks.
"""

from typing import Any

from albert import tokenization
from albert.cli import answering, flags
from albert.errors import DataError, FlagError
from albert.inference.mask_filling import MASK, MaskFiller, require_mask


def define_flags(values: flags.FlagValues) -> None:
    answering.define_flags(values)
    flags.define("integer", values, "top_k", 5, "Number of tokens per [MASK].", lower_bound=1)
    flags.define("enum", values, "format", "text", "Output format: a table, or JSON lines.",
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
            raise DataError(f"{name}: empty input")
    nonempty = [i for i, text in enumerate(texts) if text.strip() or not are_lines]
    inputs = [(texts[i], f"{origin}{i + 1}") for i in nonempty]
    for text, place in inputs:
        require_mask(text, place)
        if tokenization.scrub_surrogates(text) != text:  # Python's stand-ins for invalid bytes
            raise DataError(f"{place}: not UTF-8 text: {text!r:.80}")
    opened = answering.open_model(values)
    # Compute all answers before printing the first.
    answers = dict(zip(nonempty, MaskFiller(opened, values.top_k).predict(inputs), strict=True))
    for i, text in enumerate(texts):
        masks = answers.get(i, [])
        print(answering.as_json({"text": text, "masks": masks})
              if values.format == "json" else _as_table(text, masks), flush=True)


def _as_table(text: str, masks: list[list[dict[str, Any]]]) -> str:
    lines = [text]
    for number, tokens in enumerate(masks, start=1):
        lines.append(f"  {MASK} {number}")
        lines += [f"    {one['probability']:.4f}  {one['piece']}" for one in tokens]
    return "\n".join(lines)


cli = flags.command(__doc__, define_flags, main, takes_arguments=True)

if __name__ == "__main__":
    cli()

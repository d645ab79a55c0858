"""Prints the tokens that a pretrained ALBERT predicts for each [MASK] of a text.

  python -m albert.fill_mask --model=small_en "The boys [MASK] playing in the garden."

Texts are arguments, lines of --input_file, or lines of the standard input. For each
[MASK] it prints the likeliest tokens with their probabilities, as a table or, with
--format=json, as one JSON object per text. An empty line has no masks.
"""

from albert import tokenization
from albert.albert_tokenizer import MASK
from albert.cli import answering, flags
from albert.errors import DataError, FlagError
from albert.inference.predictors import MaskFiller


def define_flags(values: flags.FlagValues) -> None:
    answering.define_flags(values)
    flags.define("integer", values, "top_k", 5, "Number of tokens per [MASK].", lower_bound=1)
    flags.define("enum", values, "format", "text", "Output format: a table, or JSON lines.",
                 enum_values=["text", "json"])


def main(values: flags.FlagValues, texts: list[str]) -> None:
    answering.check_flags(values)
    if texts and values.input_file != answering.STDIN:
        raise FlagError("give texts as arguments or in --input_file, not both")
    are_lines, name = not texts, answering.source_name(values.input_file)
    filler = MaskFiller(answering.open_model(values), values.top_k)
    if are_lines:
        texts = answering.read_texts(values.input_file)
    inputs = {}
    for number, text in enumerate(texts, start=1):
        origin = f"{name}:{number}" if are_lines else f"argument {number}"
        if tokenization.scrub_surrogates(text) != text:  # Python's stand-ins for invalid bytes
            raise DataError(f"{origin}: not UTF-8 text: {text!r:.80}")
        if text.strip() or not are_lines:
            inputs[number] = filler.read(text, origin)
    # Compute all answers before printing the first.
    answers = dict(zip(inputs, filler.predict(inputs.values()), strict=True))
    all_masks = [answers.get(number, []) for number in range(1, len(texts) + 1)]
    if values.format == "json":
        return answering.write_lines(
            {"text": text, "masks": masks} for text, masks in zip(texts, all_masks, strict=True)
        )
    for text, masks in zip(texts, all_masks, strict=True):
        print(text)
        for number, tokens in enumerate(masks, start=1):
            print(f"  {MASK} {number}")
            for one in tokens:
                print(f"    {one['probability']:.4f}  {one['piece']}")


cli = flags.command(__doc__, define_flags, main, takes_arguments=True)

if __name__ == "__main__":
    cli()

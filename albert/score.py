"""Scores sentences with a pretrained ALBERT, or tests which of two it prefers.

  python -m albert.score --model=albert_base --pairs_file=BLiMP.zip --output_file=blimp.json
  echo "The cats sleep." | python -m albert.score --model=albert_base

The score of a sentence is its pseudo-log-likelihood: the sum of the log-probabilities of its
tokens, masking one token at a time. Sentences are lines of --input_file or of the standard
input; each gives one JSON object, in order. An empty line has no tokens and scores 0.

With --pairs_file it reports how often the model prefers the acceptable sentence of a minimal pair:
the mean over the paradigms, where ties count half, and 0.5 is chance. Baselines are random weights,
on part of the pairs, and the frequencies of the vocabulary's tokens.
"""

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from albert.cli import answering, flags
from albert.errors import DataError, FlagError
from albert.inference.scoring import SentenceScorer, pair_scores, unigram_scores
from albert.inference.session import Session
from albert.runtime.progress import Progress
from albert.storage import files
from albert.tasks import minimal_pairs
from albert.tasks.minimal_pairs import Pair

UNTRAINED_PAIRS = 20  # per paradigm, enough to show chance level


def define_flags(values: flags.FlagValues) -> None:
    answering.define_flags(values, batch_size=256)
    flags.define("path", values, "pairs_file", None,
                 "Minimal pairs in BLiMP's format: a *.jsonl file (compressed or not), a folder of "
                 "them, or a *.zip.", use="file")
    flags.define("integer", values, "pairs_per_paradigm", None,
                 "Number of pairs to use of each paradigm, the first ones; 100 are enough for a "
                 "curve. Default: all.", lower_bound=1)
    flags.define("bool", values, "within_words", False,
                 "Mask the later tokens of a word together with the scored one, which they would "
                 "otherwise give away.")
    flags.define("path", values, "output_file", None,
                 "JSON file for the results. Default: the standard output.", use="output")


def main(values: flags.FlagValues) -> None:
    answering.check_flags(values)
    if not values.pairs_file:
        if values.pairs_per_paradigm is not None:
            raise FlagError("--pairs_per_paradigm needs --pairs_file")
        _score_texts(values)
        return
    if values.input_file != answering.STDIN:
        raise FlagError("give only one of --input_file and --pairs_file")
    pairs = minimal_pairs.read_pairs(values.pairs_file, values.pairs_per_paradigm)
    opened = answering.open_model(values)
    scoring = "within words" if values.within_words else "pieces"
    results = {"model": values.model, "scoring": scoring}
    results |= _accuracies(pairs, SentenceScorer(opened, values.within_words))
    results["random weights"] = _untrained(values, opened, pairs)
    unigrams = unigram_scores(opened.tokenizer, [text for p in pairs for text in (p.good, p.bad)])
    if unigrams:
        accuracies = minimal_pairs.accuracies(pairs, unigrams[::2], unigrams[1::2])
        results["frequencies of pieces"] = _short(accuracies)
    for name in ("random weights", "frequencies of pieces"):
        if name in results:
            flags.log.info("%s: %.4f", name, results[name]["accuracy"])
    for name, value in results["phenomena"].items():
        flags.log.info("  %s: %.4f", name, value)
    flags.log.info(
        "accuracy %.4f (standard error %.4f), %s pairs, %s ties", results["accuracy"],
        results["standard_error"], f"{results['pairs']:,}", f"{results['ties']:,}",
    )
    content = json.dumps(results, indent=2, ensure_ascii=False)
    if not values.output_file:
        print(content)
        return
    with files.atomic_write(values.output_file) as stream:
        stream.write(content + "\n")


def _score_texts(values: flags.FlagValues) -> None:
    name = answering.source_name(values.input_file)
    texts = answering.read_texts(values.input_file)
    opened = answering.open_model(values)
    sizes = [len(ids) for ids in opened.tokenizer.encode_batch(texts)]
    limit = opened.max_seq_length - 2
    for number, (text, size) in enumerate(zip(texts, sizes, strict=True), start=1):
        if size > limit:  # checked before anything is computed
            raise DataError(f"{name}:{number}: {size} tokens, at most {limit} fit: {text!r:.80}")
    inputs = [(text, f"{name}:{number}") for number, text in enumerate(texts, start=1)]
    with contextlib.ExitStack() as stack:
        stream = None
        if values.output_file:
            stream = stack.enter_context(files.atomic_write(values.output_file))
        for score in SentenceScorer(opened, values.within_words).predict(inputs):
            print(json.dumps(score), file=stream, flush=stream is None)


def _accuracies(pairs: Sequence[Pair], scorer: SentenceScorer) -> dict[str, Any]:
    return pair_scores(scorer, pairs, progress=Progress("scored", 2 * len(pairs), "sentences"))


def _untrained(values: flags.FlagValues, opened: Session, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Returns the result for random weights."""
    import keras

    from albert import modeling

    keras.utils.set_random_seed(1)
    model = modeling.AlbertForMaskedLM(opened.source.config)
    pairs = minimal_pairs.first_of_each(pairs, UNTRAINED_PAIRS)
    return _short(_accuracies(pairs, SentenceScorer(opened, values.within_words, model)))


def _short(results: dict[str, Any]) -> dict[str, Any]:
    return {name: results[name] for name in ("accuracy", "standard_error", "pairs", "ties")}


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

"""Tells how likely a pretrained ALBERT finds sentences, and which of two it prefers.

  python -m albert.score --model=albert_base --pairs_file=BLiMP.zip --output_file=blimp.json
  echo "The cats sleep." | python -m albert.score --model=albert_base

The score of a sentence is its pseudo-log-likelihood: the sum of the log-probabilities of its
pieces, each where it alone is masked. Sentences are lines of --input_file or of the standard
input; each gives one JSON object, in order. An empty line has no tokens and the score 0.

With --pairs_file the model chooses between an acceptable sentence and one that is not. Told is how
often it prefers the acceptable one, as the mean over the paradigms; equal scores count half. Beside
it stand the same with random weights, on a part of the pairs, and with the frequencies of the
vocabulary's pieces. 0.5 is chance.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from albert.cli import answering, flags
from albert.errors import DataError, FlagError
from albert.inference.scoring import SentenceScorer, unigram_scores
from albert.inference.session import Session
from albert.runtime.progress import Progress
from albert.storage import files
from albert.tasks import minimal_pairs
from albert.tasks.minimal_pairs import Pair

UNTRAINED_PAIRS = 20  # of each paradigm, which is enough to see chance


def define_flags(values: flags.FlagValues) -> None:
    answering.define_flags(values, batch_size=256)
    flags.define("path", values, "pairs_file", None,
                 "Minimal pairs in BLiMP's format: *.jsonl, packed or not, a folder of such, or a "
                 "*.zip.", use="file")
    flags.define("integer", values, "pairs_per_paradigm", None,
                 "So many pairs of each paradigm, the first ones; all by default. 100 are enough "
                 "for a curve.", lower_bound=1)
    flags.define("bool", values, "within_words", False,
                 "Mask the later pieces of a word together with one of its pieces. Else words of "
                 "several pieces have an advantage: each piece gives the others away.")
    flags.define("path", values, "output_file", None,
                 "Where the results go, as JSON; the standard output by default.", use="output")


def main(values: flags.FlagValues) -> None:
    answering.check_flags(values)
    if not values.pairs_file:
        if values.pairs_per_paradigm is not None:
            raise FlagError("--pairs_per_paradigm goes with --pairs_file")
        _score_texts(values)
        return
    if values.input_file != answering.STDIN:
        raise FlagError("give one of --input_file and --pairs_file")
    pairs = minimal_pairs.read_pairs(values.pairs_file, values.pairs_per_paradigm)
    opened = answering.open_model(values)
    results = {"model": values.model, "scoring": "within words" if values.within_words else "pieces"}
    results |= _accuracies(pairs, _scorer(values, opened))
    results["random weights"] = _untrained(values, opened, pairs)
    of_pieces = unigram_scores(opened.tokenizer, [text for p in pairs for text in (p.good, p.bad)])
    if of_pieces:
        told = minimal_pairs.accuracies(pairs, of_pieces[::2], of_pieces[1::2])
        results["frequencies of pieces"] = _short(told)
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
    most = opened.max_seq_length - 2
    for number, (text, size) in enumerate(zip(texts, sizes, strict=True), start=1):
        if size > most:  # before anything is computed
            raise DataError(f"{name}:{number}: {size} tokens, at most {most} fit: {text!r:.80}")
    found = SentenceScorer(opened, values.within_words).scores(texts, texts)
    with contextlib.ExitStack() as stack:
        stream = None
        if values.output_file:
            stream = stack.enter_context(files.atomic_write(values.output_file))
        for value, count in found:
            line = json.dumps({"log_probability": value, "pieces": count})
            print(line, file=stream, flush=stream is None)


def _scorer(values: flags.FlagValues, opened: Session, model: Any = None) -> Callable:
    """Returns a function from texts to their scores."""
    scorer = SentenceScorer(opened, values.within_words, model)

    def scores(texts: Sequence[str]) -> list[float]:
        progress = Progress("scored", len(texts), "sentences")
        places = [f"pair {1 + i // 2}" for i in range(len(texts))]
        return [value for value, _ in scorer.scores(texts, places, progress)]

    return scores


def _accuracies(pairs: Sequence[Pair], scores: Callable) -> dict[str, Any]:
    found = scores([text for pair in pairs for text in (pair.good, pair.bad)])
    return minimal_pairs.accuracies(pairs, found[::2], found[1::2])


def _untrained(values: flags.FlagValues, opened: Session, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Returns the result of random weights."""
    import keras

    from albert import modeling

    keras.utils.set_random_seed(1)
    model = modeling.AlbertForMaskedLM(opened.source.config)
    some = minimal_pairs.first_of_each(pairs, UNTRAINED_PAIRS)
    other = dataclasses.replace(opened)
    return _short(_accuracies(some, _scorer(values, other, model)))


def _short(results: dict[str, Any]) -> dict[str, Any]:
    return {name: results[name] for name in ("accuracy", "standard_error", "pairs", "ties")}


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

"""Pretraining instances with random draws in exactly the original's order.

For those who need the original's records token for token. Everything is held in memory, one
process draws, and each draw is made where the original makes it. The original drew the lengths
of n-grams from NumPy's global generator and never seeded it. Here that generator has a seed of
its own.
"""

import dataclasses
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from albert.pretraining_data.buckets import PairFacts, Part, write_part
from albert.pretraining_data.masking import MaskingSettings, ngram_probabilities
from albert.pretraining_data.pairs import PairSettings
from albert.pretraining_data.recipe import Job, Recipe, load_tokenizer
from albert.pretraining_data.rows import TrainingInstance
from albert.pretraining_data.spills import write_whole
from albert.records import records
from albert.text.documents import Document
from albert.tokenization import FullTokenizer, is_start_piece

Tokens = list[str]
# The pieces of a word, by their places; and the words that one n-gram covers.
Word = list[int]


@dataclasses.dataclass
class Generators:
    """The two generators that the original draws from, in turn."""

    rng: random.Random
    numpy: np.random.RandomState  # of n-gram lengths; legacy, as its stream is the original's

    @classmethod
    def seeded(cls, seed: int, numpy_seed: int) -> "Generators":
        """Returns fresh generators; 0 <= numpy_seed < 2^32."""
        return cls(random.Random(seed), np.random.RandomState(numpy_seed))


@dataclasses.dataclass(frozen=True)
class OriginalRecipe:
    """What decides the instances, but the text and the draws."""

    pairs: PairSettings
    masking: MaskingSettings
    vocab_words: Sequence[str]  # in the order of their ids
    is_start_piece: Callable[[str], bool]

    @property
    def _is_next_sentence(self) -> bool:
        return self.pairs.sentence_objective == "nsp"

    def create_instances(
        self, documents: Sequence[list[Tokens]], dupe_factor: int, draws: Generators
    ) -> list[TrainingInstance]:
        """Returns shuffled instances; documents are lists of segments, and are shuffled first."""
        documents = list(documents)
        draws.rng.shuffle(documents)
        instances = [
            instance
            for _ in range(dupe_factor)
            for index in range(len(documents))
            for instance in self.create_instances_from_document(documents, index, draws)
        ]
        draws.rng.shuffle(instances)
        return instances

    def create_instances_from_document(
        self, documents: Sequence[list[Tokens]], index: int, draws: Generators
    ) -> Iterator[TrainingInstance]:
        """Yields the instances of one pass over one document, in order."""
        document, rng = documents[index], draws.rng
        most = self.pairs.max_tokens
        target = most
        if rng.random() < self.pairs.short_seq_prob:
            target = rng.randint(2, most)
        chunk: list[Tokens] = []
        length = place = 0
        while place < len(document):
            chunk.append(document[place])
            length += len(document[place])
            if place == len(document) - 1 or length >= target:
                a, b, is_random, unused = self._pair(documents, index, chunk, target, rng)
                lost = max(0, len(a) + len(b) - most)
                _truncate_pair(a, b, most, rng)
                yield dataclasses.replace(self._instance(a, b, is_random, draws), lost=lost)
                place -= unused
                chunk, length = [], 0
            place += 1

    def _pair(self, documents, index: int, chunk: list[Tokens], target: int, rng: random.Random):
        """Returns (A, B, whether swapped or random, segments to put back)."""
        cut = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
        a = [token for segment in chunk[:cut] for token in segment]
        if len(chunk) == 1 or (self._is_next_sentence and rng.random() < 0.5):
            b = self._random_text(documents, index, target - len(a), rng)
            return a, b, True, len(chunk) - cut
        b = [token for segment in chunk[cut:] for token in segment]
        if not self._is_next_sentence and rng.random() < 0.5:
            return b, a, True, 0
        return a, b, False, 0

    def _random_text(self, documents, index: int, length: int, rng: random.Random) -> Tokens:
        """Returns the text of another document, if ten tries find one, from a random segment on."""
        for _ in range(10):
            other = rng.randint(0, len(documents) - 1)
            if other != index:
                break
        document = documents[other]
        tokens: Tokens = []
        for segment in document[rng.randint(0, len(document) - 1) :]:
            tokens += segment
            if len(tokens) >= length:
                break
        return tokens

    def _instance(
        self, a: Tokens, b: Tokens, is_random: bool, draws: Generators
    ) -> TrainingInstance:
        tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
        masked, positions, labels, boundary = self.create_masked_lm_predictions(tokens, draws)
        segment_ids = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        return TrainingInstance(masked, segment_ids, positions, labels, is_random, boundary)

    def create_masked_lm_predictions(
        self, tokens: Tokens, draws: Generators
    ) -> tuple[Tokens, list[int], list[str], list[int]]:
        """Returns (tokens, positions, original tokens there, token boundaries)."""
        settings, rng = self.masking, draws.rng
        words, boundary = self._words(tokens)
        if settings.masked_lm_prob == 0:
            return list(tokens), [], [], boundary
        share = max(1, int(round(len(tokens) * settings.masked_lm_prob)))
        most = min(settings.max_predictions_per_seq, share)
        candidates = [
            [words[i : i + n] for n in range(1, settings.ngram + 1)] for i in range(len(words))
        ]
        rng.shuffle(candidates)
        output, labels, covered = list(tokens), {}, set()
        for places in self._spans(candidates, most, covered, draws):
            for place in places:
                output[place] = self._replacement(tokens[place], rng)
                labels[place] = tokens[place]
        rng.shuffle(candidates)  # whether or not anything is permuted
        if settings.do_permutation:
            spans = self._spans(candidates, most, covered, draws)
            places = sorted(place for span in spans for place in span)
            sources = list(places)
            rng.shuffle(sources)
            before = list(output)
            for place, source in zip(places, sources, strict=True):
                output[place], labels[place] = before[source], before[place]
        positions = sorted(labels)
        return output, positions, [labels[p] for p in positions], boundary

    def _words(self, tokens: Tokens) -> tuple[list[Word], list[int]]:
        """Returns the words, and 1 for each token that begins one (or is special)."""
        words: list[Word] = []
        boundary = [0] * len(tokens)
        for place, token in enumerate(tokens):
            if token in ("[CLS]", "[SEP]"):
                boundary[place] = 1
                continue
            starts = self.is_start_piece(token)
            boundary[place] = int(starts)
            # Over a [SEP] too, as in the original.
            if self.masking.do_whole_word_mask and words and not starts:
                words[-1].append(place)
                boundary[place] = 0
            else:
                words.append([place])
        return words, boundary

    def _spans(
        self, candidates: list[list[list[Word]]], most: int, covered: set[int], draws: Generators
    ) -> Iterator[Word]:
        """Yields the places of n-grams, disjoint, at most `most`; adds them to `covered`."""
        probabilities = ngram_probabilities(self.masking)
        lengths = np.arange(1, self.masking.ngram + 1)
        count = 0
        for ngrams in candidates:
            if count >= most:
                return
            n = int(draws.numpy.choice(lengths, p=probabilities))
            # Shorter ones are tried where the drawn one is too many.
            while n > 1 and count + sum(map(len, ngrams[n - 1])) > most:
                n -= 1
            places = [place for word in ngrams[n - 1] for place in word]
            if count + len(places) > most or not covered.isdisjoint(places):
                continue
            covered.update(places)
            count += len(places)
            yield places

    def _replacement(self, token: str, rng: random.Random) -> str:
        if rng.random() < 0.8:
            return "[MASK]"
        if rng.random() < 0.5:
            return token
        return self.vocab_words[rng.randint(0, len(self.vocab_words) - 1)]


def _truncate_pair(a: Tokens, b: Tokens, most: int, rng: random.Random) -> None:
    """Cuts tokens off the longer one (B of equals), from its front or its end at random."""
    while len(a) + len(b) > most:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def make_parts(
    job: Job, texts: Sequence[Document], numpy_seed: int, scratch: str
) -> dict[str, list[Part]]:
    """Returns the instances of a job's documents, dealt round-robin to a part for each file."""
    recipe, (stream,), tokenizer = job.recipe, job.streams, load_tokenizer(job.recipe)

    def segments(text: Document) -> list[Tokens]:
        pieces = (tokenizer.tokenize(tokenizer.preprocess(line)) for line in text)
        return [segment for segment in pieces if segment]

    original = OriginalRecipe(
        recipe.pairs, recipe.masking,
        [tokenizer.inv_vocab[i] for i in range(tokenizer.vocab_size)],
        lambda piece: is_start_piece(piece, tokenizer.is_spm),
    )
    instances = original.create_instances(
        [document for document in map(segments, texts) if document], stream.passes,
        Generators.seeded(recipe.random_seed, numpy_seed),
    )
    parts = []
    for number in range(len(stream.outputs)):
        mine = instances[number :: len(stream.outputs)]
        examples, path = stream.examples(number), os.path.join(scratch, f"{number}.part")
        framed = _frame(mine, recipe, tokenizer.convert_tokens_to_ids, examples)
        with write_whole(path) as out:
            parts.append(write_part(path, out, framed, *_facts(mine, tokenizer, recipe)))
    return {stream.name: parts}


def _frame(
    instances: Sequence[TrainingInstance],
    recipe: Recipe,
    to_ids: Callable[[Tokens], list[int]],
    examples: int,
) -> Iterator[tuple[bytes, int, list[str]]]:
    """Yields what `frame_bucket` does, of instances in their order."""
    shown = list(map(str, instances[:examples]))
    features = to_features(instances, recipe, to_ids)
    for content, count in records.frame_rows(features, recipe.feature_spec()):
        yield content, count, shown
        shown = []


def _facts(
    instances: Sequence[TrainingInstance], tokenizer: FullTokenizer, recipe: Recipe
) -> tuple[PairFacts, np.ndarray]:
    unknown, lengths = tokenizer.inv_vocab[tokenizer.unk_id], [len(i.tokens) for i in instances]
    counts = PairFacts(
        sum(instance.is_random_next for instance in instances),
        sum(lengths) - 3 * len(instances),
        sum(instance.lost for instance in instances),
        sum(_text_of(instance).count(unknown) for instance in instances),
    )
    return counts, np.bincount(lengths, minlength=recipe.pairs.max_seq_length + 1)


def _text_of(instance: TrainingInstance) -> Tokens:
    """Returns the tokens as they were before some were masked."""
    tokens = list(instance.tokens)
    for place, label in zip(
        instance.masked_lm_positions, instance.masked_lm_labels, strict=True
    ):
        tokens[place] = label
    return tokens


def to_features(
    instances: Iterable[TrainingInstance],
    recipe: Recipe,
    to_ids: Callable[[Tokens], list[int]],
) -> Iterator[dict[str, Any]]:
    """Yields the records of instances, padded with zeros."""
    length, predictions = recipe.pairs.max_seq_length, recipe.masking.num_predictions
    for instance in instances:
        used = len(instance.tokens)

        def row(values, size=length):
            return np.pad(np.asarray(values, np.int64), (0, size - len(values)))

        yield {
            "input_ids": row(to_ids(instance.tokens)),
            "input_mask": row([1] * used),
            "segment_ids": row(instance.segment_ids),
            "token_boundary": row(instance.token_boundary),
            "masked_lm_positions": row(instance.masked_lm_positions, predictions),
            "masked_lm_ids": row(to_ids(instance.masked_lm_labels), predictions),
            "masked_lm_weights": row(
                [1] * len(instance.masked_lm_positions), predictions
            ).astype(np.float32),
            "next_sentence_labels": np.array([int(instance.is_random_next)]),
        }

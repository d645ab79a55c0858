"""The original's recipe, transcribed, gives its instances and records, token for token.

The transcription has the original's random numbers in their order; tokens, n-gram lengths and records are
ours. The original draws n-gram lengths from NumPy's global generator, which it never seeds; here that
generator has a seed.
"""

import dataclasses
import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jobs
import numpy as np
import pytest
import tensorflow as tf

from albert.pretraining_data.features import masked_features
from albert.pretraining_data.masking import ngram_probabilities
from albert.records import tfrecord
from albert.records.examples import FeatureSpec, encode_examples
from albert.text.documents import ReadingCounts, read_documents
from albert.tokenization import FullTokenizer, is_start_piece

Tokens = list[str]
Word = list[int]  # positions of its tokens


@dataclasses.dataclass
class Instance:
    """One pair with its predictions."""

    tokens: list[str]
    segment_ids: list[int]
    masked_lm_positions: list[int]
    masked_lm_labels: list[str]
    is_random_next: bool
    token_boundary: list[int]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The original's flags, with its defaults."""

    max_seq_length: int = 512
    short_seq_prob: float = 0.1
    random_next_sentence: bool = False
    max_predictions_per_seq: int = 20
    masked_lm_prob: float = 0.15
    ngram: int = 3
    favor_shorter_ngram: bool = True
    do_whole_word_mask: bool = True
    do_permutation: bool = False
    dupe_factor: int = 40


@dataclasses.dataclass
class Generators:
    """The original's two random number generators."""

    rng: random.Random
    numpy: np.random.RandomState  # for n-gram lengths; legacy, like the original's

    @classmethod
    def seeded(cls, seed: int, numpy_seed: int) -> "Generators":
        """Returns new generators; 0 <= numpy_seed < 2^32."""
        return cls(random.Random(seed), np.random.RandomState(numpy_seed))


@dataclasses.dataclass(frozen=True)
class OriginalRecipe:
    """Everything except text and random numbers that determines the instances."""

    settings: Settings
    vocab_words: Sequence[str]  # in the order of their ids
    is_start_piece: Callable[[str], bool]

    def create_instances(
        self, documents: Sequence[list[Tokens]], dupe_factor: int, generators: Generators
    ) -> list[Instance]:
        """Returns shuffled instances of documents (lists of segments), which are shuffled first."""
        documents = list(documents)
        generators.rng.shuffle(documents)
        instances = [
            instance
            for _ in range(dupe_factor)
            for index in range(len(documents))
            for instance in self.create_instances_from_document(documents, index, generators)
        ]
        generators.rng.shuffle(instances)
        return instances

    def create_instances_from_document(
        self, documents: Sequence[list[Tokens]], index: int, generators: Generators
    ) -> Iterator[Instance]:
        """Yields the instances of one pass over one document, in order."""
        document, rng = documents[index], generators.rng
        max_tokens = self.settings.max_seq_length - 3
        target = max_tokens
        if rng.random() < self.settings.short_seq_prob:
            target = rng.randint(2, max_tokens)
        chunk: list[Tokens] = []
        length = position = 0
        while position < len(document):
            chunk.append(document[position])
            length += len(document[position])
            if position == len(document) - 1 or length >= target:
                a, b, is_random, unused = self._pair(documents, index, chunk, target, rng)
                _truncate_pair(a, b, max_tokens, rng)
                yield self._instance(a, b, is_random, generators)
                position -= unused
                chunk, length = [], 0
            position += 1

    def _pair(self, documents, index: int, chunk: list[Tokens], target: int, rng: random.Random):
        """Returns (A, B, whether B is swapped or random, number of segments to use again)."""
        cut = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
        a = [token for segment in chunk[:cut] for token in segment]
        if len(chunk) == 1 or (self.settings.random_next_sentence and rng.random() < 0.5):
            b = self._random_text(documents, index, target - len(a), rng)
            return a, b, True, len(chunk) - cut
        b = [token for segment in chunk[cut:] for token in segment]
        if not self.settings.random_next_sentence and rng.random() < 0.5:
            return b, a, True, 0
        return a, b, False, 0

    def _random_text(self, documents, index: int, length: int, rng: random.Random) -> Tokens:
        """Returns text of another document (if ten tries find one), starting at a random segment."""
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
        self, a: Tokens, b: Tokens, is_random: bool, generators: Generators
    ) -> Instance:
        tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
        masked, positions, labels, boundary = self.create_masked_lm_predictions(tokens, generators)
        segment_ids = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        return Instance(masked, segment_ids, positions, labels, is_random, boundary)

    def create_masked_lm_predictions(
        self, tokens: Tokens, generators: Generators
    ) -> tuple[Tokens, list[int], list[str], list[int]]:
        """Returns (tokens, positions, original tokens there, token boundaries)."""
        settings, rng = self.settings, generators.rng
        words, boundary = self._words(tokens)
        if settings.masked_lm_prob == 0:
            return list(tokens), [], [], boundary
        wanted = max(1, int(round(len(tokens) * settings.masked_lm_prob)))
        budget = min(settings.max_predictions_per_seq, wanted)
        candidates = [
            [words[i : i + n] for n in range(1, settings.ngram + 1)] for i in range(len(words))
        ]
        rng.shuffle(candidates)
        output, labels, covered = list(tokens), {}, set()
        for span in self._spans(candidates, budget, covered, generators):
            for position in span:
                output[position] = self._replacement(tokens[position], rng)
                labels[position] = tokens[position]
        rng.shuffle(candidates)  # whether or not anything is permuted
        if settings.do_permutation:
            spans = self._spans(candidates, budget, covered, generators)
            permuted = sorted(position for span in spans for position in span)
            sources = list(permuted)
            rng.shuffle(sources)
            before = list(output)
            for position, source in zip(permuted, sources, strict=True):
                output[position], labels[position] = before[source], before[position]
        positions = sorted(labels)
        return output, positions, [labels[p] for p in positions], boundary

    def _words(self, tokens: Tokens) -> tuple[list[Word], list[int]]:
        """Returns the words, and 1 for each token that starts a word or is special."""
        words: list[Word] = []
        boundary = [0] * len(tokens)
        for position, token in enumerate(tokens):
            if token in ("[CLS]", "[SEP]"):
                boundary[position] = 1
                continue
            starts = self.is_start_piece(token)
            boundary[position] = int(starts)
            # Across [SEP] too, as in the original.
            if self.settings.do_whole_word_mask and words and not starts:
                words[-1].append(position)
                boundary[position] = 0
            else:
                words.append([position])
        return words, boundary

    def _spans(
        self, candidates: list[list[list[Word]]], budget: int, covered: set[int],
        generators: Generators,
    ) -> Iterator[Word]:
        """Yields disjoint n-grams of at most `budget` tokens in all; updates `covered`."""
        probabilities = ngram_probabilities(self.settings)
        lengths = np.arange(1, self.settings.ngram + 1)
        count = 0
        for ngrams in candidates:
            if count >= budget:
                return
            n = int(generators.numpy.choice(lengths, p=probabilities))
            while n > 1 and count + sum(map(len, ngrams[n - 1])) > budget:
                n -= 1
            span = [position for word in ngrams[n - 1] for position in word]
            if count + len(span) > budget or not covered.isdisjoint(span):
                continue
            covered.update(span)
            count += len(span)
            yield span

    def _replacement(self, token: str, rng: random.Random) -> str:
        if rng.random() < 0.8:
            return "[MASK]"
        if rng.random() < 0.5:
            return token
        return self.vocab_words[rng.randint(0, len(self.vocab_words) - 1)]


def _truncate_pair(a: Tokens, b: Tokens, max_tokens: int, rng: random.Random) -> None:
    """Drops tokens of the longer segment (B if equal), randomly at the front or the end."""
    while len(a) + len(b) > max_tokens:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def serialized(
    text: str, tokenizer: FullTokenizer, settings: Settings, seed: int, numpy_seed: int | None = None
) -> list[bytes]:
    """Returns the serialized records of a text file."""
    def segments(document: list[str]) -> list[Tokens]:
        tokens = (tokenizer.tokenize(tokenizer.preprocess(line)) for line in document)
        return [segment for segment in tokens if segment]

    documents = read_documents([text], tokenizer.preprocess, ReadingCounts())
    original = OriginalRecipe(
        settings, [tokenizer.inv_vocab[i] for i in range(tokenizer.vocab_size)],
        lambda token: is_start_piece(token, tokenizer.is_spm),
    )
    instances = original.create_instances(
        [document for document in map(segments, documents) if document], settings.dupe_factor,
        Generators.seeded(seed, seed if numpy_seed is None else numpy_seed),
    )
    predictions = settings.max_predictions_per_seq * (1 + settings.do_permutation)
    features = masked_features(settings.max_seq_length, predictions, with_boundary=True)
    rows = list(to_features(
        instances, settings.max_seq_length, predictions, tokenizer.convert_tokens_to_ids
    ))
    return encode_examples({n: np.stack([row[n] for row in rows]) for n in features}, FeatureSpec(features))


def to_features(
    instances: Iterable[Instance], length: int, predictions: int,
    to_ids: Callable[[Tokens], list[int]],
) -> Iterator[dict[str, Any]]:
    """Yields the features of instances, padded with zeros."""
    def pad(values: Sequence[int], size: int) -> np.ndarray:
        return np.pad(np.asarray(values, np.int64), (0, size - len(values)))

    for instance in instances:
        used, count = len(instance.tokens), len(instance.masked_lm_positions)
        yield {
            "input_ids": pad(to_ids(instance.tokens), length),
            "input_mask": pad([1] * used, length),
            "segment_ids": pad(instance.segment_ids, length),
            "token_boundary": pad(instance.token_boundary, length),
            "masked_lm_positions": pad(instance.masked_lm_positions, predictions),
            "masked_lm_ids": pad(to_ids(instance.masked_lm_labels), predictions),
            "masked_lm_weights": pad([1] * count, predictions).astype(np.float32),
            "next_sentence_labels": np.array([int(instance.is_random_next)]),
        }


# --- The tests ---


@pytest.fixture(scope="module")
def golden(golden_path):
    # spec 17: the original's functions, run with fixed seeds for both generators.
    return json.loads(golden_path("spec_golden.json").read_text())["pretraining_data"]


def recipe(golden, **settings) -> OriginalRecipe:
    return OriginalRecipe(
        Settings(**settings), golden["vocab"],
        lambda piece: is_start_piece(piece, True),
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("wwm=True perm=False favor=True max=20", {}),
        ("wwm=True perm=False favor=False max=20", {"favor_shorter_ngram": False}),
        ("wwm=False perm=False favor=True max=3",
         {"do_whole_word_mask": False, "max_predictions_per_seq": 3}),
        ("wwm=True perm=True favor=True max=4",
         {"do_permutation": True, "max_predictions_per_seq": 4}),
    ],
)
def test_masks_are_the_originals_token_for_token(name, settings, golden):
    draws = Generators(random.Random(12345), np.random.RandomState(7))
    made = recipe(golden, masked_lm_prob=0.3, **settings).create_masked_lm_predictions(
        golden["toks"], draws
    )
    expected = golden[name]
    keys = ("tokens", "positions", "labels", "boundary")
    assert dict(zip(keys, map(list, made), strict=True)) == expected


@pytest.mark.parametrize("random_next", [False, True])
def test_instances_are_the_originals_token_for_token(random_next, golden):
    one = recipe(golden, max_seq_length=16, random_next_sentence=random_next,
                 max_predictions_per_seq=2)
    draws = Generators(random.Random(5), np.random.RandomState(3))
    made = [
        instance
        for index in range(len(golden["docs"]))
        for instance in one.create_instances_from_document(golden["docs"], index, draws)
    ]
    expected = golden[f"instances_rns={random_next}"]
    assert len(made) == len(expected)
    for ours, theirs in zip(made, expected, strict=True):
        assert ours.tokens == theirs["tokens"]
        assert ours.segment_ids == theirs["seg"]
        assert int(ours.is_random_next) == theirs["label"]
        assert ours.masked_lm_positions == theirs["pos"]
        assert ours.masked_lm_labels == theirs["labels"]
        assert ours.token_boundary == theirs["boundary"]


@pytest.mark.parametrize(
    "setting", ["default", *(pytest.param(name, marks=pytest.mark.slow) for name in ("random_next", "permutation"))]
)
def test_records_are_the_originals(setting, golden_path):
    folder = golden_path("pretraining_data")
    chosen = json.loads((folder / "stats.json").read_text())[setting]
    values = dict(chosen["settings"])
    tokenizer = FullTokenizer(
        None, values.pop("do_lower_case"), str(golden_path("spm/30k-clean.model"))
    )
    digest, count = hashlib.sha256(), 0
    for record in serialized(
        str(folder / "corpus.txt"), tokenizer, Settings(**values), chosen["seed"]
    ):
        example = tf.train.Example.FromString(record)
        digest.update(example.SerializeToString(deterministic=True))
        count += 1
    expected = json.loads((folder / "records_sha256.json").read_text())[setting]
    assert {"records": count, "sha256": digest.hexdigest()} == expected


def test_words_of_a_wordpiece_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##s", "we"])
    )
    (tmp_path / "text.txt").write_text("\n\n".join("We playing\nplays we playing" for _ in "abcd"))
    out = tmp_path / "out.tfrecord"
    assert 0 == jobs.create_data(
        f"--input_file={tmp_path / 'text.txt'}", f"--vocab_file={tmp_path / 'vocab.txt'}",
        f"--output_file={out}", "--max_seq_length=12", "--dupe_factor=3",
        "--short_seq_prob=0", "--max_predictions_per_seq=4", "--masked_lm_prob=0.4",
    )
    whole = set()
    for record in tfrecord.read_records(str(out)):
        feature = tf.train.Example.FromString(record).features.feature
        ids, boundary, positions, labels = (
            list(feature[name].int64_list.value)
            for name in ("input_ids", "token_boundary", "masked_lm_positions", "masked_lm_ids")
        )
        length = sum(feature["input_mask"].int64_list.value)
        for position, label in zip(positions, labels, strict=True):
            if position:
                ids[position] = label
        assert boundary[:length] == [int(i not in (6, 7)) for i in ids[:length]]
        chosen = set(positions) - {0}
        for position in range(1, length):
            if ids[position] in (6, 7):  # masked together with its word
                assert (position in chosen) == (position - 1 in chosen)
                whole.add(position in chosen)
    assert whole == {True, False}

"""Masking: the recipe's rules hold for every sequence, its proportions over many."""

import types

import numpy as np
import pytest
from making_records import masked_pairs

from albert.pretraining_data import dynamic_masking, masking
from albert.pretraining_data.masking import MaskingSettings, SpecialIds
from albert.pretraining_data.rng import SequenceRng, keys_at
from albert.tokenization import FullTokenizer, is_start_piece

CLS, SEP, MASK = 2, 3, 4
V = 50  # ids 5..29 begin words, 30..49 continue them
IS_START, SPECIAL_IDS = np.arange(V) < 30, SpecialIds(CLS, SEP, MASK, V)


def make_batch(count, length, rng, shortest=8):
    """[CLS] A [SEP] B [SEP] of random tokens and lengths, padded."""
    ids, lengths = np.zeros((count, length), np.int64), rng.integers(shortest, length + 1, count)
    for row, size in enumerate(lengths):
        ids[row, :size] = rng.integers(5, V, size)
        ids[row, [0, rng.integers(2, size - 2), size - 1]] = [CLS, SEP, SEP]
    return ids, lengths


def words_of(ids, whole_words=True):
    """The words of one sequence by the plain rule, as lists of positions."""
    words = []
    for position, token in enumerate(ids):
        if token in (CLS, SEP):
            continue
        if whole_words and words and not IS_START[token]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def run(settings, count=400, length=40, seed=0):
    rng = np.random.default_rng(seed)
    ids, lengths = make_batch(count, length, rng)
    return ids, lengths, mask(ids, lengths, settings, rng)


def draws(count):
    return SequenceRng(keys_at(0, np.arange(count)))


def mask(ids, lengths, settings, rng):
    boundary = masking.token_boundaries(ids, lengths, IS_START, SPECIAL_IDS)
    keys = rng.integers(0, 1 << 64, len(ids), np.uint64)
    return masked_by(ids, lengths, boundary, SPECIAL_IDS, settings, keys)


def masked_by(*arguments):
    names = ("input_ids", "positions", "labels", "counts")
    return types.SimpleNamespace(**dict(zip(names, masking.mask_batch(*arguments), strict=True)))


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("ngram", [1, 3, 5])
def test_rules_hold_on_every_sequence(whole_words, ngram):
    settings = MaskingSettings(7, 0.3, ngram, do_whole_word_mask=whole_words)
    ids, lengths, masked = run(settings)
    assert masked.positions.shape == (400, 7)
    budget = masking.num_to_predict(lengths, settings)
    assert (masked.counts <= budget).all()
    for row in range(len(ids)):
        count = masked.counts[row]
        positions = masked.positions[row, :count].tolist()
        assert positions == sorted(set(positions))
        assert masked.labels[row, :count].tolist() == ids[row, positions].tolist()
        assert not masked.positions[row, count:].any() and not masked.labels[row, count:].any()
        untouched = np.setdiff1d(np.arange(ids.shape[1]), positions)
        assert (masked.input_ids[row, untouched] == ids[row, untouched]).all()
        for word in words_of(ids[row, : lengths[row]].tolist(), whole_words):
            assert len(set(word) & set(positions)) in (0, len(word))
        assert not {CLS, SEP} & set(ids[row, positions].tolist())


def test_as_many_tokens_are_masked_as_the_share_says():
    _, lengths, masked = run(settings := MaskingSettings(7, 0.3, do_whole_word_mask=False))
    assert (masked.counts == masking.num_to_predict(lengths, settings)).all()
    # Halves round to even, and one token is always masked.
    settings = MaskingSettings(20, 0.5)
    assert masking.num_to_predict([1, 5, 7, 41], settings).tolist() == [1, 2, 4, 20]
    assert masking.num_to_predict([5], MaskingSettings(20, 0.01)).tolist() == [1]
    # A word longer than the budget is skipped.
    ids = np.array([[CLS, 10, 40, 40, 40, SEP, 11, 40, 40, SEP]])
    masked = mask(ids, np.array([10]), MaskingSettings(2, 0.15), np.random.default_rng(0))
    assert masked.counts.tolist() == [0] and (masked.input_ids == ids).all()
    ids, _, masked = run(MaskingSettings(7, 0.0))
    assert (masked.input_ids == ids).all() and not masked.counts.any()
    assert masked.positions.shape == (400, 7)


def test_a_continuation_at_the_start_of_b_belongs_to_the_last_word_of_a():
    ids = np.array([[CLS, 10, SEP, 40, SEP]])
    joined = MaskingSettings(2, 0.4)
    one = MaskingSettings(1, 0.4)
    rng = np.random.default_rng(0)
    length = np.array([5])
    assert mask(ids, length, joined, rng).positions.tolist() == [[1, 3]]
    assert mask(ids, length, one, rng).counts.tolist() == [0]


@pytest.mark.parametrize("share", [0.0, 0.8, 1.0])
def test_shares_of_mask_kept_and_random_are_those_asked_for(share):
    settings = MaskingSettings(20, 0.15, mask_token_share=share)
    ids, _, masked = run(settings, count=5_000, length=64)
    row, rank = np.nonzero(np.arange(20) < masked.counts[:, None])
    column = masked.positions[row, rank]
    now, was = masked.input_ids[row, column], ids[row, column]
    n = len(now)
    drawn = (1 - share) / 2
    for found, rest in (((now == MASK).mean(), share), ((now == was).mean(), drawn)):
        want = rest + drawn / V  # a random token may be either
        assert abs(found - want) <= 4 * np.sqrt(want * (1 - want) / n)
    is_random = (now != MASK) & (now != was)
    # Any of the vocabulary.
    assert set(np.unique(now[is_random])) == (set(range(V)) - {MASK} if share < 1 else set())


@pytest.mark.parametrize("shorter,want", [(True, [6, 3, 2]), (False, [2, 3, 6])])
def test_ngram_lengths_are_drawn_in_inverse_proportion(shorter, want):
    settings = MaskingSettings(3, 1.0, 3, shorter)
    assert np.allclose(masking.ngram_probabilities(settings) * 11, want)
    # Every word is one token and the budget fits exactly one n-gram of three. If
    # the first draw is shorter, later ones fill the budget, so look at the runs
    # of three, which a first draw of three always makes.
    ids = np.tile([CLS, *[10] * 60, SEP, *[11] * 60, SEP], (20_000, 1))
    masked = mask(
        ids, np.full(20_000, 123), settings, np.random.default_rng(1)
    )
    together = (masked.positions[:, 2] - masked.positions[:, 0] == 2).mean()
    # N-grams at the end are cut, and shorter draws may be adjacent by chance: a few percent.
    assert abs(together - want[2] / 11) < 0.05


def test_random_order_is_a_fair_permutation():
    count = np.array([4] * 24_000 + [2] * 24_000)
    order = masking._random_order(count, 4, draws(len(count)))
    seen, times = np.unique(order[:24_000], axis=0, return_counts=True)
    assert len(seen) == 24 and abs(times - 1000).max() < 5 * np.sqrt(1000)
    assert (np.sort(order[24_000:, :2], axis=1) == [0, 1]).all()


def test_the_masks_of_a_sequence_do_not_depend_on_how_many_are_beside_it():
    ids, lengths = make_batch(500, 10, np.random.default_rng(6))
    many = np.tile(np.arange(500), 80)  # more positions and sequences than 16 bits can count
    keys = keys_at(1, np.arange(len(many)))
    boundary = masking.token_boundaries(ids, lengths, IS_START, SPECIAL_IDS)

    def mask_some(places):
        rows, settings = many[places], MaskingSettings(5, 0.5)
        return masking.mask_batch(
            ids[rows], lengths[rows], boundary[rows], SPECIAL_IDS, settings, keys[places]
        )

    whole = mask_some(np.arange(len(many)))
    for first, last in ((0, 10), (20_000, 20_001), (39_990, 40_000)):
        places = np.arange(first, last)
        for part, all_of_it in zip(mask_some(places), whole, strict=True):
            np.testing.assert_array_equal(part, all_of_it[places])


@pytest.mark.parametrize("ngram,length", [(1, 30), (12, 30), (3, 200), (32, 200)])
def test_the_ngrams_are_those_of_a_plain_loop_over_the_same_draws(ngram, length):
    settings = MaskingSettings(length // 3, 0.4, ngram)
    ids, lengths = make_batch(200, length, np.random.default_rng(7))
    keys = keys_at(2, np.arange(len(ids)))
    boundary = masking.token_boundaries(ids, lengths, IS_START, SPECIAL_IDS)
    masked = masked_by(ids, lengths, boundary, SPECIAL_IDS, settings, keys)
    draws, limits = SequenceRng(keys), np.cumsum(masking.ngram_probabilities(settings))
    words = [
        words_of(row[:length].tolist())
        for row, length in zip(ids, lengths, strict=True)
    ]
    count = np.array([len(row) for row in words])
    order = masking._random_order(count, count.max(), draws)
    for row, budget in enumerate(masking.num_to_predict(lengths, settings)):
        chosen = []
        for step, first in enumerate(order[row, : count[row]].tolist()):
            draw = draws.uniform(SequenceRng.LENGTH, np.array([row]), step)[0]
            following = words[row][first : first + 1 + int((draw >= limits).sum())]
            while len(chosen) + sum(map(len, following)) > budget:
                following = following[:-1]
            tokens = sum(following, [])
            if not set(tokens) & set(chosen):
                chosen += tokens
        assert masked.positions[row, : masked.counts[row]].tolist() == sorted(chosen)


def test_ngrams_of_more_words_than_can_be_looked_up_are_refused():
    with pytest.raises(ValueError, match="ngram 33 must be from 1 to 32"):
        MaskingSettings(ngram=33)


# --- Masks drawn while reading records ---


def test_swapped_segments_keep_their_words_and_borders():
    ids = np.array([[2, 10, 11, 12, 3, 20, 21, 3, 0, 0], [2, 10, 3, 20, 21, 22, 23, 24, 25, 3]])
    segments, boundary = np.array([[3, 2], [1, 6]]), (ids % 10 < 2).astype(int)
    masks = dynamic_masking.DynamicMasking(
        10, MaskingSettings(2, 0.0), SpecialIds(CLS, SEP, MASK, 1000), 0, swap_prob=1.0
    )
    out = masked_pairs(masks, ids, segments, boundary, np.zeros((2, 1), int), np.arange(2))
    assert out["input_ids"].tolist() == [
        [2, 20, 21, 3, 10, 11, 12, 3, 0, 0], [2, 20, 21, 22, 23, 24, 25, 3, 10, 3]
    ]
    assert out["segment_ids"].tolist() == [
        [0, 0, 0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    ]
    assert out["input_mask"].sum(axis=1).tolist() == [8, 10]
    assert out["next_sentence_labels"].tolist() == [[1], [1]]
    random_b = masked_pairs(masks, ids, segments, boundary, np.ones((2, 1), int), np.arange(2))
    assert (random_b["input_ids"] == ids).all()  # its label would not change
    # A single sentence is never swapped.
    ids = np.array([[2, 10, 11, 12, 3, 0, 0, 0, 0, 0]])
    out = masked_pairs(
        masks, ids, np.array([[3, 0]]), np.ones_like(ids), np.zeros((1, 1), int), np.arange(1)
    )
    assert out["input_ids"].tolist() == ids.tolist()
    assert out["next_sentence_labels"].tolist() == [[0]]


def test_word_boundaries_of_real_pieces(golden_path):
    tokenizer = FullTokenizer(None, spm_model_file=str(golden_path("spm/30k-clean.model")))
    is_start = np.array(tokenizer.start_pieces())
    special_ids = SpecialIds(CLS, SEP, MASK, len(is_start))
    text = golden_path("pretraining_data/corpus.txt").read_text(encoding="utf-8")
    ids = np.array([[CLS, *tokenizer.encode_text(text[:400])[:20], SEP]])
    boundary = masking.token_boundaries(ids, np.array([22]), is_start, special_ids)
    names = tokenizer.convert_ids_to_tokens(ids[0])
    for name, begins in zip(names[1:-1], boundary[0, 1:-1], strict=True):
        assert bool(begins) == is_start_piece(name, is_spm=True)
    assert boundary[0, [0, -1]].tolist() == [1, 1]


def test_word_boundaries_of_wordpiece(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##s", "we"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"))
    is_start, special_ids = np.array(tokenizer.start_pieces()), SpecialIds(CLS, SEP, MASK, len(pieces))
    ids = np.array([[CLS, *tokenizer.encode_text("We playing plays"), SEP]])
    boundary = masking.token_boundaries(ids, np.array([7]), is_start, special_ids)
    assert boundary.tolist() == [[1, 1, 1, 0, 1, 0, 1]]

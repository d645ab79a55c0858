"""SQuAD's official scores, and decoding equal to the original's."""

import collections
import dataclasses
import gzip
import json
import types

import numpy as np
import pytest
from sentencepiece import sentencepiece_pb2

from albert import tokenization
from albert.tasks.squad import decode as squad_decode
from albert.tasks.squad import metrics
from albert.tasks.squad.features import Window, make_windows
from albert.tasks.squad.questions import read_answers, read_examples
from albert.text.added_tokens import AddedTokens


@pytest.fixture(scope="module")
def folder(golden_path):
    return golden_path("squad")


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_strings_score_as_in_the_official_scripts(golden_path):
    for case in load(golden_path("squad_odd/string_scores.json")):
        gold, pred = case["gold"], case["pred"]
        assert metrics.normalize_answer(gold) == case["norm_gold"] == case["norm_gold_v2"]
        assert metrics.exact_match(gold, pred) == case["v1_em"] == bool(case["v2_em"])
        assert metrics.f1_score(gold, pred) == case["v1_f1"], case
        assert metrics.f1_score(gold, pred, no_answer_is_one=True) == case["v2_f1"], case


# Output of the official scripts for three published systems (data/README.md).
V1, V2 = "derived-v1.1-5articles.json", "dev-v2.0-5articles.json"
PUBLISHED = {
    "v1.1-bert-ensemble": (V1, {"exact_match": 84.25531914893617, "f1": 91.35940195788031}),
    "v1.1-logreg": (V1, {"exact_match": 40.283687943262414, "f1": 50.48022562978764}),
    "v2.0-bert-single": (V2, {
        "exact": 75.55081734186211, "f1": 78.83251404548824, "total": 1407,
        "HasAns_exact": 70.3546, "HasAns_f1": 76.9040, "NoAns_f1": 80.7692,
    }),
}


def test_the_scores_are_the_official_numbers_to_the_last_digit(shared):
    data = shared / "data/squad"
    for system, (file, official) in PUBLISHED.items():
        answers = read_answers(str(data / file))
        predictions = load(data / f"predictions/{system}.5articles.json")
        found = (metrics.evaluate_v2 if file == V2 else metrics.evaluate_v1)(answers, predictions)
        for name, value in official.items():
            assert (round(found[name], 4) if "Ans" in name else found[name]) == value, name


def windows_of(folder, file):
    with gzip.open(folder / f"features.{file}.s96.json.gz") as stream:
        read = json.load(stream)
    for fields in read:
        del fields["doc_span_index"]  # the window's number in its question, which nothing reads
    windows = [Window(**fields) for fields in read]
    for window in windows:
        has_context = window.token_is_max_context.items()
        window.token_is_max_context = {int(place): is_it for place, is_it in has_context}
    return windows


def as_the_original(dataset, answers, odds):
    """Results and answers of the original, which compares odds with 1.0 as if they were probabilities.

    An answer whose odds equal the threshold is withheld there. The threshold is that of the official
    search: questions are answered one by one in the order of their odds, from none at 0.
    """
    scores = metrics.raw_scores(dataset, answers)["f1"]
    current = best = sum(not golds for golds in dataset.values())
    threshold = 0.0
    for qid in sorted(odds, key=odds.__getitem__):
        current += scores[qid] if dataset[qid] else -bool(answers[qid])
        if current > best:
            best, threshold = current, odds[qid]
    chosen = {qid: text if odds[qid] < threshold else "" for qid, text in answers.items()}
    likely = {qid: text if odds[qid] <= 1.0 else "" for qid, text in chosen.items()}
    results = metrics.evaluate_v2(dataset, likely)
    kept = {name: results[name] for name in ("exact", "f1", "total")}
    return kept | {"null_score_diff_threshold": threshold}, chosen


def assert_files_equal(ours, golden):
    assert list(ours) == list(golden)
    for qid, entries in golden.items():
        assert len(ours[qid]) == len(entries), qid
        for mine, theirs in zip(ours[qid], entries, strict=True):
            assert mine["text"] == theirs["text"]
            for name in ("probability", "start_log_prob", "end_log_prob"):
                assert mine[name] == pytest.approx(theirs[name], rel=1e-6, abs=1e-9)


def test_version_1_decodes_as_the_original(folder):
    logits = np.load(folder / "v1_logits.npz")
    results = {
        unique_id: {f"{part}_logits": logits[f"run0/{part}_log_prob"][row] for part in ("start", "end")}
        for row, unique_id in enumerate(logits["unique_id"].tolist())
    }
    examples = read_examples(str(folder / "dev-v1.1.json"), False)
    answers, nbest = squad_decode.decode_v1(
        examples, windows_of(folder, "dev-v1.1"), results, n_best_size=20, max_answer_length=30
    )
    assert answers == load(folder / "v1_single_predictions.json")
    assert_files_equal(nbest, load(folder / "v1_single_nbest.json"))
    dataset = read_answers(str(folder / "dev-v1.1.json"))
    assert metrics.evaluate_v1(dataset, answers) == load(folder / "v1_single_eval.json")


def test_version_2_decodes_as_the_original(folder):
    outputs = np.load(folder / "v2_outputs.npz")
    names = ("start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index",
             "cls_logits")
    results = {
        int(unique_id): {name: outputs[f"run0/{name}"][row] for name in names}
        for row, unique_id in enumerate(outputs["unique_id"])
    }
    examples = read_examples(str(folder / "dev-v2.0.json"), False)
    answers, nbest, odds = squad_decode.decode_v2(
        examples, windows_of(folder, "dev-v2.0"), results, n_best_size=20, max_answer_length=30
    )
    assert_files_equal(nbest, load(folder / "v2_single_nbest.json"))
    golden_odds = load(folder / "v2_single_null_odds.json")
    assert list(odds) == list(golden_odds)
    np.testing.assert_allclose(list(odds.values()), list(golden_odds.values()), rtol=1e-6)
    for threshold in (None, 0.0, -1.0):
        golden = load(folder / f"v2_single_predictions_threshold_{threshold}.json")
        chosen = answers
        if threshold is not None:
            chosen = squad_decode.with_threshold(answers, odds, threshold)
        assert chosen == golden
    dataset = read_answers(str(folder / "dev-v2.0.json"))
    results, chosen = as_the_original(dataset, answers, odds)
    assert chosen == load(folder / "v2_single_predictions.json")
    golden = load(folder / "v2_single_eval.json")
    assert set(results) == set(golden)
    for name, value in golden.items():
        assert results[name] == value, name
    # Without the second, constant threshold, no given answer is withdrawn.
    ours, _ = squad_decode.evaluate_with_threshold(dataset, answers, odds)
    assert ours["f1"] == ours["best_f1"] >= results["f1"]
    assert {"best_f1", "best_exact_thresh", "HasAns_f1", "NoAns_exact"} <= set(ours)


# --- spec_golden.json: a context with ligatures and quotes, and scores with repeated pairs ---


class SpecTokenizer:
    """The subwords that these values were made with: beginnings of words, then groups of four."""

    is_spm, do_lower_case, cls_id, sep_id, pad_id = True, True, 2, 3, 0
    inv_vocab = collections.defaultdict(str, {3: "[SEP]"})

    def note_unknown(self, texts, ids):
        """Counts nothing."""

    @staticmethod
    def _pieces(text):
        pieces = []
        for word in text.split():
            pieces.append("\u2581" + word[:4])
            pieces += [word[i : i + 4] for i in range(4, len(word), 4)]
        return pieces

    settings, added = tokenization.TextSettings(), AddedTokens({})

    def encode(self, text, out_type):
        """Returns what SentencePiece does: the bytes of each token, with the space before it."""
        proto, at = sentencepiece_pb2.SentencePieceText(), 0
        for piece in self._pieces(text):
            surface = piece.replace("\u2581", " " if at else "")
            end = at + len(surface.encode())
            proto.pieces.add(piece=piece, begin=at, end=end)
            at = end
        return proto.SerializeToString()

    sp_model = property(lambda self: self)

    def preprocess(self, text):
        return tokenization.preprocess_text(text, lower=True)

    preprocess_character = staticmethod(lambda char: tokenization.preprocess_text(
        char, remove_space=False, lower=True
    ))

    def tokenize(self, text):
        return tokenization.encode_pieces(types.SimpleNamespace(EncodeAsPieces=self._pieces), text)

    def convert_tokens_to_ids(self, pieces):
        return [5 + sum(map(ord, piece)) % 900 for piece in pieces]

    def encode_text(self, text):
        return self.convert_tokens_to_ids(self.tokenize(self.preprocess(text)))


@pytest.fixture(scope="module")
def spec(golden_path, tmp_path_factory):
    """(golden values, function from is_training to (examples, windows))."""
    golden = load(golden_path("spec_golden.json"))["squad_data"]
    path = tmp_path_factory.mktemp("spec") / "data.json"
    path.write_text(json.dumps(golden["data"]))

    def read(is_training):
        examples = read_examples(str(path), is_training)
        return examples, list(make_windows(
            examples, SpecTokenizer(), max_seq_length=32, doc_stride=8, max_query_length=6,
            is_training=is_training,
        ))

    return golden, read


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_windows_of_ligatures_and_quotes_are_the_originals(kind, spec):
    golden, read = spec
    for window, expected in zip(read(kind == "train")[1], golden[f"features_{kind}"], strict=True):
        ours = json.loads(json.dumps(dataclasses.asdict(window)))
        # The first token begins after white space, which the original counts in.
        others = set(expected) & set(ours)
        others -= {"tokens", "tok_start_to_orig_index", "tok_end_to_orig_index"}
        assert set(expected) - set(ours) == {"doc_span_index"}
        assert {name: ours[name] for name in others} == {name: expected[name] for name in others}


def test_short_answers_of_version_1_are_the_originals(spec):
    golden, read = spec
    examples, windows = read(False)
    results = {
        raw["unique_id"]: {f"{part}_logits": raw[f"{part}_log_prob"] for part in ("start", "end")}
        for raw in golden["v1_raw"]
    }
    answers, nbest = squad_decode.decode_v1(
        examples, windows, results, n_best_size=20, max_answer_length=10
    )
    assert answers == golden["v1_predictions"]
    assert_files_equal(nbest, golden["v1_nbest"])


def test_a_pair_that_a_beam_holds_twice_is_averaged_as_in_the_original(spec):
    golden, read = spec
    examples, windows = read(False)
    answers, nbest, odds = squad_decode.decode_v2(
        examples, windows, {raw["unique_id"]: raw for raw in golden["v2_raw"]}, n_best_size=20,
        max_answer_length=30,
    )
    assert_files_equal(nbest, golden["v2_nbest"])
    assert odds == golden["v2_null_odds"]
    dataset = {
        qa["id"]: [answer["text"] for answer in qa["answers"]]
        for paragraph in golden["data"]["data"][0]["paragraphs"] for qa in paragraph["qas"]
    }
    results, chosen = as_the_original(dataset, answers, odds)
    assert results == golden["v2_eval"] and chosen == golden["v2_predictions"]

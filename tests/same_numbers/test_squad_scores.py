"""SQuAD's official scores, and decoding equal to the original's."""

import collections
import gzip
import json
import types

import numpy as np
import pytest
from sentencepiece import sentencepiece_pb2

from albert import tokenization
from albert.tasks import squad_answers
from albert.tasks.squad import known_answers, make_windows, read_questions
from albert.tasks.squad_answers import Window
from albert.text.added_tokens import AddedTokens


@pytest.fixture(scope="module")
def folder(golden_path):
    return golden_path("squad")


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_strings_score_as_in_the_official_scripts(golden_path):
    for case in load(golden_path("squad_odd/string_scores.json")):
        gold, pred = case["gold"], case["pred"]
        assert squad_answers.normalize_answer(gold) == case["norm_gold"] == case["norm_gold_v2"]
        assert squad_answers.exact_match(gold, pred) == case["v1_em"] == bool(case["v2_em"])
        for version, with_negative in (("v1", False), ("v2", True)):
            f1 = squad_answers.f1_score(gold, pred, with_negative)
            assert f1 == case[f"{version}_f1"], case


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
        with_negative = file == V2
        known = known_answers(read_questions(str(data / file), False), with_negative)
        predictions = load(data / f"predictions/{system}.5articles.json")
        found = squad_answers.evaluate(known, predictions, with_negative)
        for name, value in official.items():
            assert (round(found[name], 4) if "Ans" in name else found[name]) == value, name


def windows_of(folder, file):
    with gzip.open(folder / f"features.{file}.s96.json.gz") as stream:
        return [window_of(fields) for fields in json.load(stream)]


def window_of(fields: dict) -> Window:
    """Returns a window that the original saved."""
    has_most_context = {int(i): x for i, x in fields["token_is_max_context"].items()}
    bounds = zip(fields["tok_start_to_orig_index"], fields["tok_end_to_orig_index"], strict=True)
    return Window(
        fields["example_index"], {}, min(has_most_context), np.array(list(bounds)),
        np.array([has_most_context[i] for i in sorted(has_most_context)]), None,
    )


def as_the_original(dataset, answers, odds):
    """Results and answers of the original, which compares odds with 1.0 as if they were probabilities.

    An answer whose odds equal the threshold is withheld there. The threshold is that of the official
    search: questions are answered one by one in the order of their odds, from none at 0.
    """
    scores = squad_answers.question_scores(dataset, answers, True)["f1"]
    current = best = sum(not golds for golds in dataset.values())
    threshold = 0.0
    for qid in sorted(odds, key=odds.__getitem__):
        current += scores[qid] if dataset[qid] else -bool(answers[qid])
        if current > best:
            best, threshold = current, odds[qid]
    chosen = {qid: text if odds[qid] < threshold else "" for qid, text in answers.items()}
    likely = {qid: text if odds[qid] <= 1.0 else "" for qid, text in chosen.items()}
    results = squad_answers.evaluate(dataset, likely, True)
    kept = {name: results[name] for name in ("exact", "f1", "total")}
    return kept | {"null_score_diff_threshold": threshold}, chosen


def assert_lists_equal(ours, golden):
    assert list(ours) == list(golden)
    for qid, entries in golden.items():
        assert len(ours[qid]) == len(entries), qid
        for mine, theirs in zip(ours[qid], entries, strict=True):
            assert mine.text == theirs["text"]
            for name in ("probability", "start_log_prob", "end_log_prob"):
                assert getattr(mine, name) == pytest.approx(theirs[name], rel=1e-6, abs=1e-9)


def decoded(questions, windows, outputs, with_negative, max_answer_length=30):
    """Returns answers before any threshold, n-best lists and odds of no answer."""
    nbest, odds = squad_answers.decode(
        questions, windows, outputs, with_negative=with_negative, n_best_size=20,
        max_answer_length=max_answer_length,
    )
    return {qid: entries[0].text for qid, entries in nbest.items()}, nbest, odds


def outputs_of(file, names: dict[str, str]) -> list[dict]:
    """Returns the outputs of each window, in the order of their ids."""
    arrays = np.load(file)
    order = np.argsort(arrays["unique_id"])
    return [{name: arrays[f"run0/{key}"][i] for name, key in names.items()} for i in order]


def test_version_1_decodes_as_the_original(folder):
    outputs = outputs_of(
        folder / "v1_logits.npz", {f"{part}_logits": f"{part}_log_prob" for part in ("start", "end")}
    )
    questions = read_questions(str(folder / "dev-v1.1.json"), False)
    answers, nbest, _ = decoded(questions, windows_of(folder, "dev-v1.1"), outputs, False)
    assert answers == load(folder / "v1_single_predictions.json")
    assert_lists_equal(nbest, load(folder / "v1_single_nbest.json"))
    known = known_answers(questions, False)
    assert squad_answers.evaluate(known, answers, False) == load(folder / "v1_single_eval.json")


def test_version_2_decodes_as_the_original(folder):
    names = ("start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index",
             "cls_logits")
    outputs = outputs_of(folder / "v2_outputs.npz", {name: name for name in names})
    questions = read_questions(str(folder / "dev-v2.0.json"), False)
    answers, nbest, odds = decoded(questions, windows_of(folder, "dev-v2.0"), outputs, True)
    assert_lists_equal(nbest, load(folder / "v2_single_nbest.json"))
    golden_odds = load(folder / "v2_single_null_odds.json")
    assert list(odds) == list(golden_odds)
    np.testing.assert_allclose(list(odds.values()), list(golden_odds.values()), rtol=1e-6)
    for threshold in (None, 0.0, -1.0):
        golden = load(folder / f"v2_single_predictions_threshold_{threshold}.json")
        chosen = answers
        if threshold is not None:
            chosen = squad_answers.with_threshold(answers, odds, threshold)
        assert chosen == golden
    known = known_answers(questions, True)
    results, chosen = as_the_original(known, answers, odds)
    assert chosen == load(folder / "v2_single_predictions.json")
    golden = load(folder / "v2_single_eval.json")
    assert set(results) == set(golden)
    for name, value in golden.items():
        assert results[name] == value, name
    # Without the second, constant threshold, no given answer is withdrawn.
    ours, _ = squad_answers.evaluate_with_threshold(known, answers, odds)
    assert ours["f1"] == ours["best_f1"] >= results["f1"]
    assert {"best_f1", "best_exact_thresh", "HasAns_f1", "NoAns_exact"} <= set(ours)


# --- spec_golden.json: a context with ligatures and quotes, and scores with repeated pairs ---


class SpecTokenizer:
    """The subwords that these values were made with: beginnings of words, then groups of four."""

    is_spm, do_lower_case, cls_id, sep_id, pad_id = True, True, 2, 3, 0
    inv_vocab = collections.defaultdict(str, {3: "[SEP]"})

    @staticmethod
    def _pieces(text):
        pieces = []
        for word in text.split():
            pieces.append("\u2581" + word[:4])
            pieces += [word[i : i + 4] for i in range(4, len(word), 4)]
        return pieces

    settings, added, special = tokenization.TextSettings(), AddedTokens({}), AddedTokens({})

    def note_unknown(self, texts, all_ids):
        """No token of it is unknown."""

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
    """(golden values, function from is_training to (questions, windows))."""
    golden = load(golden_path("spec_golden.json"))["squad_data"]
    path = tmp_path_factory.mktemp("spec") / "data.json"
    path.write_text(json.dumps(golden["data"]))

    def read(is_training):
        questions = read_questions(str(path), is_training)
        return questions, list(make_windows(
            questions, SpecTokenizer(), max_seq_length=32, doc_stride=8, max_query_length=6
        ))

    return golden, read


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_windows_of_ligatures_and_quotes_are_the_originals(kind, spec):
    golden, read = spec
    for window, fields in zip(read(kind == "train")[1], golden[f"features_{kind}"], strict=True):
        expected = window_of(fields | {"example_index": window.question})
        for name in ("input_ids", "input_mask", "segment_ids", "p_mask"):
            assert window.row[name].tolist() == fields[name], name
        assert window.offset == expected.offset
        np.testing.assert_array_equal(window.has_most_context, expected.has_most_context)
        # The first token begins after white space, which the original counts in.
        np.testing.assert_array_equal(window.spans[1:, 1], expected.spans[1:, 1])
        if kind == "train":
            assert (window.answer or (0, 0)) == (fields["start_position"], fields["end_position"])
            assert (window.answer is None) == fields["is_impossible"]
        else:
            assert fields["example_index"] == window.question


def test_short_answers_of_version_1_are_the_originals(spec):
    golden, read = spec
    outputs = [
        {f"{part}_logits": raw[f"{part}_log_prob"] for part in ("start", "end")}
        for raw in golden["v1_raw"]
    ]
    answers, nbest, _ = decoded(*read(False), outputs, False, max_answer_length=10)
    assert answers == golden["v1_predictions"]
    assert_lists_equal(nbest, golden["v1_nbest"])


def test_a_pair_that_a_beam_holds_twice_is_averaged_as_in_the_original(spec):
    golden, read = spec
    questions, windows = read(False)
    answers, nbest, odds = decoded(questions, windows, golden["v2_raw"], True)
    assert_lists_equal(nbest, golden["v2_nbest"])
    assert odds == golden["v2_null_odds"]
    known = {question.qas_id: question.answers for question in questions}
    results, chosen = as_the_original(known, answers, odds)
    assert results == golden["v2_eval"] and chosen == golden["v2_predictions"]

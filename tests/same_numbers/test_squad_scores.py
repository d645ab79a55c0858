"""SQuAD's official scores, and decoding equal to the original's."""

import collections
import dataclasses
import gzip
import json
import types

import numpy as np
import pytest
from helpers import assert_one_clear_line, run

from albert import tokenization
from albert.tasks.squad import decode as squad_decode
from albert.tasks.squad import metrics
from albert.tasks.squad.features import Window, make_windows, read_answers, read_examples


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


# What the official scripts print for three published systems (data/README.md).
PUBLISHED = {
    "v1.1-bert-ensemble": {"exact_match": 84.25531914893617, "f1": 91.35940195788031},
    "v1.1-logreg": {"exact_match": 40.283687943262414, "f1": 50.48022562978764},
    "v2.0-bert-single": {"exact": 75.55081734186211, "f1": 78.83251404548824, "total": 1407},
}


@pytest.mark.parametrize("system", PUBLISHED)
def test_the_command_prints_the_official_numbers_to_the_last_digit(system, shared):
    data = shared / "data/squad"
    is_v2 = system.startswith("v2")
    name = "dev-v2.0-5articles.json" if is_v2 else "derived-v1.1-5articles.json"
    done = run(
        "albert.evaluate_squad", f"--dataset_file={data / name}",
        f"--predictions_file={data / f'predictions/{system}.5articles.json'}",
        *(["--version_2_with_negative"] if is_v2 else []),
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert {name: printed[name] for name in PUBLISHED[system]} == PUBLISHED[system]
    if is_v2:
        assert round(printed["HasAns_exact"], 4) == 70.3546
        assert round(printed["HasAns_f1"], 4) == 76.9040
        assert round(printed["NoAns_f1"], 4) == 80.7692


def windows_of(folder, file):
    with gzip.open(folder / f"features.{file}.s96.json.gz") as stream:
        windows = [Window(**fields) for fields in json.load(stream)]
    for window in windows:
        has_context = window.token_is_max_context.items()
        window.token_is_max_context = {int(place): is_it for place, is_it in has_context}
    return windows


def as_the_original(dataset, answers, odds):
    """Results and answers of the original, which compares odds with 1.0 as if probabilities.

    An answer whose odds equal the threshold is withheld there.
    """
    best = metrics.best_scores(dataset, answers, metrics.raw_scores(dataset, answers), odds)
    threshold = best["best_f1_thresh"]
    chosen = {qid: text if odds[qid] < threshold else "" for qid, text in answers.items()}
    results = metrics.evaluate_v2(dataset, chosen, odds, 1.0)
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
    scores = zip(logits["run0/start_log_prob"], logits["run0/end_log_prob"], strict=True)
    results = dict(zip(logits["unique_id"].tolist(), scores, strict=True))
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
        chosen = squad_decode.with_threshold(answers, odds, threshold)
        assert chosen == golden
    dataset = read_answers(str(folder / "dev-v2.0.json"))
    results, chosen = as_the_original(dataset, answers, odds)
    assert chosen == load(folder / "v2_single_predictions.json")
    golden = load(folder / "v2_single_eval.json")
    assert set(results) == set(golden)
    for name, value in golden.items():
        assert results[name] == value, name
    # Without the second, constant threshold no answer that was given is taken back.
    ours, _ = squad_decode.evaluate_with_threshold(dataset, answers, odds)
    assert ours["f1"] == ours["best_f1"] >= results["f1"]
    assert {"best_f1", "best_exact_thresh", "HasAns_f1", "NoAns_exact"} <= set(ours)


DATASET = {"data": [{"paragraphs": [{"context": "the cat sat", "qas": [
    {"id": "1", "question": "who?", "answers": [{"text": "the cat", "answer_start": 0}]},
    {"id": "2", "question": "what?", "answers": [{"text": "sat", "answer_start": 8}]},
]}]}]}


UNANSWERABLE = {"data": [{"paragraphs": [{"context": "the cat sat", "qas": [
    {"id": "1", "question": "when?", "answers": [], "is_impossible": True},
    {"id": "2", "question": "why?", "answers": [], "is_impossible": True},
]}]}]}


def evaluate(tmp_path, predictions, *more, dataset=DATASET):
    (tmp_path / "d.json").write_text(json.dumps(dataset))
    (tmp_path / "p.json").write_text(
        predictions if isinstance(predictions, str) else json.dumps(predictions)
    )
    return run(
        "albert.evaluate_squad", f"--dataset_file={tmp_path / 'd.json'}",
        f"--predictions_file={tmp_path / 'p.json'}", *more,
    )


def test_a_question_without_prediction_scores_0_and_is_told(tmp_path):
    out = tmp_path / "r.json"
    done = evaluate(tmp_path, {"1": "cat"}, f"--output_file={out}")
    assert json.loads(done.stdout) == {"exact_match": 50.0, "f1": 50.0} == load(out)
    assert "no prediction for 1 questions, scored 0: 2" in done.stderr


@pytest.mark.parametrize(
    ("predictions", "more", "dataset", "message"),
    [
        ("{", [], DATASET, "p.json:1:2: not JSON"),
        ([], [], DATASET, "p.json: expected an object, got list"),
        ({"1": 3}, [], DATASET, "p.json: '1' must be a string, got 3"),
        ({"1": "x"}, [], {"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "1"}]}]}]},
         "d.json: 1 questions have no 'answers', as '1'"),
        ({"1": "x"}, ["--null_odds_file=x"], DATASET, "needs --version_2_with_negative"),
        ({}, [], {"data": []}, "d.json: no questions"),
        ({"1": "x"}, [], UNANSWERABLE,
         "d.json: 2 questions have no answer, as '1'; add --version_2_with_negative"),
    ],
)
def test_files_that_are_none_are_refused(predictions, more, dataset, message, tmp_path):
    done = evaluate(tmp_path, predictions, *more, dataset=dataset)
    assert done.returncode == 2
    assert message in assert_one_clear_line(done.stderr)


def test_absent_predictions_score_0_in_version_2_too(tmp_path):
    odds = tmp_path / "odds.json"
    odds.write_text('{"1": 0.5}')
    more = "--version_2_with_negative", f"--null_odds_file={odds}"
    done = evaluate(tmp_path, {"1": ""}, *more, dataset=UNANSWERABLE)
    assert "no prediction for 1 questions, scored 0: 2" in done.stderr
    printed = json.loads(done.stdout)
    assert (printed["exact"], printed["total"], printed["NoAns_total"]) == (50.0, 2, 2)
    assert (printed["best_exact"], printed["best_f1"]) == (50.0, 50.0)


@pytest.mark.parametrize(
    ("odds", "message"),
    [
        ('{"1": NaN}', "odds.json: '1' must be a number, got nan"),
        ('{"1": true}', "odds.json: '1' must be a number, got True"),
        ("{}", "odds.json: no odds of 1 predicted questions, as '1'"),
    ],
)
def test_odds_that_are_none_are_refused(odds, message, tmp_path):
    (tmp_path / "odds.json").write_text(odds)
    more = "--version_2_with_negative", f"--null_odds_file={tmp_path / 'odds.json'}"
    # "9" is no question of the data: what is said of it does not matter.
    done = evaluate(tmp_path, {"1": "x", "9": "y"}, *more, dataset=UNANSWERABLE)
    assert done.returncode == 2 and not done.stdout
    assert message in assert_one_clear_line(done.stderr)


# --- spec_golden.json: a context with ligatures and quotes, and scores with repeated pairs ---


class SpecTokenizer:
    """The pieces that these values were made with: the beginnings of words, and four by four."""

    is_spm, do_lower_case, cls_id, sep_id, pad_id = True, True, 2, 3, 0
    inv_vocab = collections.defaultdict(str, {3: "[SEP]"})

    @staticmethod
    def _pieces(text):
        pieces = []
        for word in text.split():
            pieces.append("\u2581" + word[:4])
            pieces += [word[i : i + 4] for i in range(4, len(word), 4)]
        return pieces

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
    """(golden values, function of is_training to (examples, windows))."""
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
        assert {name: ours[name] for name in expected if name != "tokens"} == {
            name: value for name, value in expected.items() if name != "tokens"
        }


def test_short_answers_of_version_1_are_the_originals(spec):
    golden, read = spec
    examples, windows = read(False)
    results = {
        raw["unique_id"]: (raw["start_log_prob"], raw["end_log_prob"]) for raw in golden["v1_raw"]
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

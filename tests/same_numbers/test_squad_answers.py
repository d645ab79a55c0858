"""From window scores to answers and SQuAD's metrics: checked by hand, and equal to the original's."""

import functools
import gzip
import json
import math

import numpy as np
import pytest

from albert.tasks import squad_answers
from albert.tasks.squad import known_answers, read_questions
from albert.tasks.squad_answers import Question, Window

LENGTH = 8
evaluate_v2 = functools.partial(squad_answers.evaluate, with_negative=True)
WORDS = [(0, 2), (4, 6), (8, 10), (12, 13), (15, 18)]  # first and last character


def question(qas_id="q"):
    return Question(qas_id, "?", "Ada met Bob in Rome")


def window(words=WORDS, index=0, without_context=()):
    """[CLS] ? [SEP] and the words from position 3 on, without a final [SEP]."""
    has_most_context = np.array([3 + i not in without_context for i in range(len(words))])
    return Window(index, {}, 3, np.array(words), has_most_context, None)


def logits(**scores):
    """Logits by position, as in p4=2.0; -9 elsewhere."""
    row = np.full(LENGTH, -9.0, "float32")
    for place, score in scores.items():
        row[int(place[1:])] = score
    return row


def decode_v1(windows, results, n_best_size=2, max_answer_length=5):
    nbest, odds = squad_answers.decode(
        [question()], windows, [{"start_logits": a, "end_logits": b} for a, b in results],
        with_negative=False, n_best_size=n_best_size, max_answer_length=max_answer_length,
    )
    assert not odds
    return nbest["q"]


def starts(entries):
    return [(entry.text, entry.start_log_prob) for entry in entries]


def test_the_best_pair_is_cut_out_of_the_passage_with_its_probability():
    first, second = decode_v1([window()], [(logits(p3=2, p5=1), logits(p5=3, p0=9))])
    probability = pytest.approx(math.e / (math.e + 1))
    assert first == ("Ada met Bob", probability, 2.0, 3.0, 0)
    assert second == ("Bob", pytest.approx(1 / (math.e + 1)), 1.0, 3.0, 8)


def test_an_answer_lies_in_the_passage_forwards_and_is_no_longer_than_allowed():
    none = ("empty", 1.0, 0.0, 0.0, 0)
    for scores in (
        (logits(p0=9, p1=8), logits(p3=9, p4=8)),  # starts before the passage
        (logits(p3=9, p4=8), logits(p1=9, p2=8)),  # ends before it
        (logits(p6=9, p7=8), logits(p3=9, p4=8)),  # ends before its start
        (logits(p3=9, p4=8), logits(p6=9, p7=8)),  # longer than 2 tokens
    ):
        assert decode_v1([window()], [scores], max_answer_length=2) == [none]
    scores = logits(p3=9, p4=8), logits(p4=9, p7=8)
    assert starts(decode_v1([window()], [scores], max_answer_length=2))[0] == ("Ada met", 9.0)
    scores = logits(p3=1, p6=9), logits(p3=1, p7=9)  # padding after the passage
    assert starts(decode_v1([window(WORDS[:2])], [scores])) == [("Ada", 1.0)]


def test_a_word_starts_an_answer_only_where_it_has_most_context():
    late, early = window(WORDS[2:]), window(WORDS, without_context={5, 6, 7})
    results = [(logits(p5=9), logits(p5=9)), (logits(p3=1), logits(p3=1))]
    assert starts(decode_v1([early, late], results, n_best_size=1)) == [("Bob", 1.0)]


def test_one_text_counts_once_with_its_best_score():
    results = [(logits(p3=1), logits(p3=1)), (logits(p3=4), logits(p3=4, p4=2))]
    assert starts(decode_v1([window()] * 2, results)) == [("Ada", 4.0), ("Ada met", 4.0)]


def test_of_equal_scores_the_first_window_and_place_wins():
    flat = np.zeros(LENGTH, "float32")
    words = [window(WORDS[:1]), window(WORDS[1:2])]
    entries = decode_v1(words, [(flat, flat)] * 2, n_best_size=LENGTH)
    assert starts(entries) == [("Ada", 0.0), ("met", 0.0)]
    # Only the first n positions with equal scores are combined: none is in the passage.
    assert starts(decode_v1(words, [(flat, flat)] * 2)) == [("empty", 0.0)]


# --- Version 2 ---


def beam(starts, ends, cls=0.0):
    """Starts [(position, score)], and the ends for each."""
    flat = [end for own in ends for end in own]
    return {
        "start_top_index": np.array([p for p, _ in starts]),
        "start_top_log_probs": np.array([s for _, s in starts], "float32"),
        "end_top_index": np.array([p for p, _ in flat]),
        "end_top_log_probs": np.array([s for _, s in flat], "float32"),
        "cls_logits": np.float32(cls),
    }


def decode_v2(questions, windows, results):
    return squad_answers.decode(
        questions, windows, results, with_negative=True, n_best_size=3, max_answer_length=5
    )


def test_null_odds_are_the_least_of_the_windows_and_without_any_there_is_no_answer():
    ends = [[(4, -1), (5, -3)]] * 2
    results = [beam([(3, -1), (5, -2)], ends, cls=cls) for cls in (2.0, -1.0, 0)]
    nbest, odds = decode_v2([question("lost"), question("q")], [window(index=1)] * 3, results)
    assert nbest["q"][0].text == "Ada met" and odds == {"lost": 1000000.0, "q": -1.0}
    assert nbest["lost"] == [("", 1.0, -1e6, -1e6, 0)]


def test_the_threshold_that_is_found_gives_the_best_scores_there_are_ties_and_all():
    rng = np.random.default_rng(3)
    texts, found = ["red hen", "red", "cow", "The", ""], set()
    for _ in range(200):
        ids = [str(i) for i in range(int(rng.integers(1, 7)))]
        golds, answers = (dict(zip(ids, rng.choice(texts, len(ids)).tolist())) for _ in range(2))
        odds = dict(zip(ids, rng.choice([-3.0, -2.5, 0.0, 1.0, 7.0], len(ids)).tolist()))
        data = {qid: [gold] if gold else [] for qid, gold in golds.items()}
        results, chosen = squad_answers.evaluate_with_threshold(data, answers, odds)
        every = [
            evaluate_v2(data, squad_answers.with_threshold(answers, odds, threshold))
            for threshold in (-99.0, *odds.values())
        ]
        # The saved answers score as reported, and nothing scores higher.
        assert evaluate_v2(data, chosen)["f1"] == results["f1"] == results["best_f1"]
        for name in ("exact", "f1"):
            assert results[f"best_{name}"] == pytest.approx(max(one[name] for one in every))
        threshold = results["null_score_diff_threshold"]
        assert threshold == results["best_f1_thresh"]
        assert squad_answers.with_threshold(answers, odds, threshold) == chosen
        found.add(np.sign(threshold - min(odds.values())))
    assert found == {-1.0, 0.0, 1.0}  # below all odds, at the lowest of them, above it


def test_a_threshold_that_is_given_is_used_and_is_no_result():
    data, answers = {"a": ["cow"], "b": ["hen"]}, {"a": "cow", "b": "x"}
    results, chosen = squad_answers.evaluate_with_threshold(data, answers, {"a": 1, "b": 2}, threshold=0.5)
    assert chosen == {"a": "", "b": ""} and results["f1"] == 0.0
    assert (results["best_f1"], results["best_f1_thresh"]) == (50.0, 1)
    assert "null_score_diff_threshold" not in results


# --- Scores ---


def test_the_best_of_several_answers_counts():
    answers, given = {"q": ["dog", "big cat", "cat"]}, {"q": "the cat"}
    assert squad_answers.evaluate(answers, given, False) == {"exact_match": 100.0, "f1": 100.0}
    # An answer without words is no answer, but its question has one.
    scores = evaluate_v2({"q": ["The"]}, {"q": ""})
    assert (scores["f1"], scores["HasAns_total"]) == (100.0, 1) and "NoAns_total" not in scores


def test_no_absent_prediction_ever_raises_a_score():
    questions = {"a": [], "b": [], "c": ["cat"], "d": ["dog"]}
    scores = evaluate_v2(questions, {"a": "", "c": "cat"})
    assert scores == {
        "exact": 50.0, "f1": 50.0, "total": 4,
        "HasAns_exact": 50.0, "HasAns_f1": 50.0, "HasAns_total": 2,
        "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2,
    }
    nothing = evaluate_v2(questions, {})
    assert {nothing[name] for name in ("exact", "f1")} == {0.0}


def test_scores_are_added_from_left_to_right():
    # Ten times 0.1 sums to 0.9999999999999999; rounded once at the end it is 1.0.
    assert squad_answers._per_cent(np.full(10, 0.1)) == 100.0 * 0.9999999999999999 / 10


# --- The official scripts and the original's decoding ---


@pytest.fixture(scope="module")
def folder(golden_path):
    return golden_path("squad")


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_strings_score_as_in_the_official_scripts(golden_path):
    for case in load(golden_path("squad_odd/string_scores.json")):
        gold, pred = case["gold"], case["pred"]
        assert squad_answers.normalize_answer(gold) == case["norm_gold"] == case["norm_gold_v2"]
        found = squad_answers.evaluate({"q": [gold]}, {"q": pred}, False)["exact_match"] / 100
        assert found == case["v1_em"] == bool(case["v2_em"])
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


def golden_windows(folder, file):
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
    scores = dict(zip(dataset, squad_answers.question_scores(dataset, answers, True)["f1"]))
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
    answers, nbest, _ = decoded(questions, golden_windows(folder, "dev-v1.1"), outputs, False)
    assert answers == load(folder / "v1_single_predictions.json")
    assert_lists_equal(nbest, load(folder / "v1_single_nbest.json"))
    known = known_answers(questions, False)
    assert squad_answers.evaluate(known, answers, False) == load(folder / "v1_single_eval.json")


def test_version_2_decodes_as_the_original(folder):
    names = ("start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index",
             "cls_logits")
    outputs = outputs_of(folder / "v2_outputs.npz", {name: name for name in names})
    questions = read_questions(str(folder / "dev-v2.0.json"), False)
    answers, nbest, odds = decoded(questions, golden_windows(folder, "dev-v2.0"), outputs, True)
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


# --- spec_golden.json: scores with repeated pairs ---


@pytest.fixture(scope="module")
def spec(golden_path, tmp_path_factory):
    """(golden values, questions, windows)."""
    golden = load(golden_path("spec_golden.json"))["squad_data"]
    path = tmp_path_factory.mktemp("spec") / "data.json"
    path.write_text(json.dumps(golden["data"]))
    windows = [window_of(fields) for fields in golden["features_eval"]]
    return golden, read_questions(str(path), False), windows


def test_short_answers_of_version_1_are_the_originals(spec):
    golden, questions, windows = spec
    outputs = [
        {f"{part}_logits": raw[f"{part}_log_prob"] for part in ("start", "end")}
        for raw in golden["v1_raw"]
    ]
    answers, nbest, _ = decoded(questions, windows, outputs, False, max_answer_length=10)
    assert answers == golden["v1_predictions"]
    assert_lists_equal(nbest, golden["v1_nbest"])


def test_a_pair_that_a_beam_holds_twice_is_averaged_as_in_the_original(spec):
    golden, questions, windows = spec
    answers, nbest, odds = decoded(questions, windows, golden["v2_raw"], True)
    assert_lists_equal(nbest, golden["v2_nbest"])
    assert odds == golden["v2_null_odds"]
    known = {question.qas_id: question.answers for question in questions}
    results, chosen = as_the_original(known, answers, odds)
    assert results == golden["v2_eval"] and chosen == golden["v2_predictions"]

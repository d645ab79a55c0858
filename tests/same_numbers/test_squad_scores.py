"""SQuAD's official scores, and decoding equal to the original's."""

import gzip
import json

import numpy as np
import pytest

from albert.tasks import squad_answers
from albert.tasks.squad import known_answers, read_questions
from albert.tasks.squad_answers import Window


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

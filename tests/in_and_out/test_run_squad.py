"""run_squad_v1, run_squad_v2 and run_squad: answers, thresholds, exports, refusals.

test_fine_tuning covers the behaviour common to the fine-tuning commands.
"""

import json
import shutil

import jobs
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from helpers import (
    ANIMALS, assert_one_clear_line, assert_same_gradients, dataset, results_of, run_here, train_pieces,
    write_config,
)

import albert
from albert import modeling, predict, run_squad, run_squad_v2
from albert.config import AlbertConfig
from albert.formats import pretrained
from albert.storage import files
from albert.tasks import squad_answers
from albert.tasks.squad import SquadTask


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    for version in (1, 2):
        for name, with_answers in (("dev", True), ("blind", False)):
            path = folder / f"{name}-v{version}.json"
            path.write_text(json.dumps(dataset(with_answers, version == 2)))
    text = [p["context"].lower() for p in dataset(False, False)["data"][0]["paragraphs"]]
    texts = (text + ["who sat on the mat? who flew over the sea?"]) * 9
    spm = train_pieces(folder / "spm", texts, 70)
    size = sentencepiece.SentencePieceProcessor(model_file=spm)
    write_config(folder, vocab_size=size.get_piece_size(), max_position_embeddings=64, num_hidden_layers=1)
    return folder


def squad_2(workshop, out, *more, module=run_squad_v2) -> int:
    """Runs the command on questions with and without answers; returns its exit code."""
    return jobs.command(
        module, f"--albert_config_file={workshop / 'albert_config.json'}", f"--output_dir={out}",
        f"--spm_model_file={workshop / 'spm.model'}", "--do_predict",
        f"--predict_file={workshop / 'dev-v2.json'}", "--max_seq_length=48", "--doc_stride=8",
        "--max_query_length=12", "--train_batch_size=4", "--learning_rate=3e-3", *more,
    )


@pytest.fixture(scope="module")
def trained(workshop, tmp_path_factory):
    """Output directory of a run of version 2.0."""
    out = tmp_path_factory.mktemp("trained")
    assert squad_2(
        workshop, out, f"--train_file={workshop / 'dev-v2.json'}", "--do_train", "--seed=2",
        "--num_train_epochs=3", "--save_checkpoints_steps=3",
    ) == 0
    return out


@pytest.fixture
def blind(workshop, trained, tmp_path):
    """Function that predicts a file without answers and returns the directory of predictions."""

    def get(*more, **options):
        named = [f"--predict_file={workshop / 'blind-v2.json'}", f"--checkpoint={trained}"]
        assert squad_2(workshop, tmp_path / "blind", *named, *more, **options) == 0
        return tmp_path / "blind"

    return get


def answered(folder):
    return {k: bool(v) for k, v in results_of(folder, "predictions").items()}


def within(folder, threshold):
    return {k: odds <= threshold for k, odds in results_of(folder, "null_odds").items()}


# --- A run of each version ---


@pytest.mark.parametrize("version", [1, 2])
def test_predictions_have_the_originals_form_and_score_what_the_best_checkpoint_did(version, tuned, request):
    out = tuned("squad").out if version == 1 else request.getfixturevalue("trained")
    asked = dataset(True, True) if version == 2 else results_of(out.parent, "squad")
    results, answers = results_of(out, "eval_results"), results_of(out, "predictions")
    assert results_of(out, "best")["metric"] == "f1" and results_of(out, "best")["value"] == results["f1"]
    for name in ("predictions", "nbest_predictions"):
        assert (out / f"{name}.json").read_text() == json.dumps(results_of(out, name), indent=4) + "\n"
    golds = {
        qa["id"]: [answer["text"] for answer in qa["answers"]]
        for paragraph in asked["data"][0]["paragraphs"] for qa in paragraph["qas"]
    }
    nbest = results_of(out, "nbest_predictions")
    assert list(answers) == list(nbest) == list(golds)
    assert set(next(iter(nbest.values()))[0]) == {"text", "probability", "start_log_prob", "end_log_prob"}
    assert (out / "null_odds.json").exists() == (version == 2)
    assert squad_answers.evaluate(golds, answers, version == 2)["f1"] == pytest.approx(results["f1"])
    if version == 2:
        assert set(answered(out).values()) == {True, False}
        assert answered(out) == within(out, results["null_score_diff_threshold"])


# The original's training graph.
@pytest.mark.parametrize("version", [1, 2])
def test_losses_and_gradients_are_the_originals(version, golden_path):
    folder = golden_path(f"heads/squad_v{version}")
    golden = np.load(folder / "io.npz")
    batch = {k[3:]: tf.constant(golden[k]) for k in golden.files if k.startswith("in/")}
    batch["is_real_example"] = tf.ones(batch["input_ids"].shape[0], tf.int32)
    length = batch["input_ids"].shape[1]
    task = SquadTask(length, version == 2, end_n_top=4)
    model = task.build_model(AlbertConfig.from_json_file(str(folder / "albert_config.json")))
    weights = modeling.named_weights(model)
    reader = tf.train.load_checkpoint(str(folder / "model.ckpt"))
    for name, weight in weights.items():
        weight.assign(reader.get_tensor(name))
    with tf.GradientTape() as tape:
        outputs = model.of_batch(batch)
        sums, divisors = task.loss_sums(batch, outputs), task.loss_weights(batch)
        loss = tf.add_n([sums[name] / divisors[name] for name in sums])
    np.testing.assert_allclose(loss, golden["train/loss"], rtol=1e-5)
    gradients = tape.gradient(loss, [w.value for w in weights.values()])
    without = {str(name) for name in golden["train/variables_without_gradient"]}
    found = dict(zip(weights, gradients, strict=True))
    assert {name for name, gradient in found.items() if gradient is None} <= without
    ours = {n: tf.convert_to_tensor(g).numpy() for n, g in found.items() if g is not None}
    assert_same_gradients(ours, {name: golden[f"train/grad/{name}"] for name in ours})


def test_rows_of_2_0_lose_the_padding_that_they_share_with_the_same_answers(blind):
    wide = ["--start_n_top=40", "--end_n_top=5"]  # wider than the sequences of 32 tokens
    short, full = (
        results_of(blind(*wide, *more), "nbest_predictions") for more in ([], ["--pad_to_max_seq_length"])
    )
    for guid, entries in full.items():
        assert short[guid][0]["text"] == entries[0]["text"]
        assert short[guid][0]["probability"] == pytest.approx(entries[0]["probability"], abs=1e-5)
    assert SquadTask(48, True).feature_spec().row_length == 48
    assert SquadTask(48).feature_spec().row_length is None


# --- The answers of predict and of a session ---


def test_version_1_is_answered_as_in_the_files_also_in_short_rows(tuned, tmp_path, capsys):
    run = tuned("squad")
    paragraphs = results_of(run.out.parent, "squad")["data"][0]["paragraphs"]
    lines = [f"{p['qas'][0]['question']}\t{p['context']}" for p in paragraphs]
    nbest = results_of(run.out, "nbest_predictions").values()
    for found, (best, *_) in zip(jobs.ask(tmp_path, run.out, lines), nbest, strict=True):
        assert found["answer"] == best["text"]
        assert found["probability"] == pytest.approx(best["probability"], abs=1e-4)
    # The longest question leaves space for one token of the passage, or for none.
    lines = [f"w1 {'w2 ' * 20}?\tw3 w4"]
    assert jobs.ask(tmp_path, run.out, lines, "--max_seq_length=10")[0]["answer"] in ("w3", "w4", "w3 w4")
    capsys.readouterr()
    assert run_here(
        predict, f"--model={run.out}", f"--input_file={tmp_path}/lines.txt", "--max_seq_length=9"
    ) == 2
    assert assert_one_clear_line(capsys.readouterr().err).endswith(
        "--max_seq_length=9 is too short for passages: the model was trained with questions "
        "of up to 6 tokens, so it must be at least 10"
    )


def test_a_session_leaves_the_questions_unanswered_that_the_evaluation_did(workshop, trained, tmp_path):
    predicted, nbest, odds = (
        results_of(trained, name) for name in ("predictions", "nbest_predictions", "null_odds")
    )
    threshold = results_of(trained, "eval_results")["null_score_diff_threshold"]
    asked = {
        qa["id"]: (qa["question"], paragraph["context"])
        for paragraph in results_of(workshop, "dev-v2")["data"][0]["paragraphs"]
        for qa in paragraph["qas"]
    }
    kind = albert.AlbertForBeamQuestionAnswering
    kind.from_pretrained(str(trained)).save_pretrained(str(tmp_path))
    shutil.copy(pretrained.open_path(str(trained)).vocabulary.spm_model_file, tmp_path)
    for model in (trained, tmp_path):
        answers = dict(zip(asked, albert.open_session(str(model)).answer(asked.values()), strict=True))
        for qid, answer in answers.items():
            # The threshold is the odds of a question, whose last digit depends on the order of sums.
            if abs(odds[qid] - threshold) > 1e-4:
                assert answer["answer"] == predicted[qid]
            assert answer["best_answer"] == nbest[qid][0]["text"]
            assert asked[qid][1][answer["start"] : answer["end"]] == answer["answer"]
            assert answer["answer"] or answer["start"] == answer["end"] == 0
            assert answer["probability"] == pytest.approx(nbest[qid][0]["probability"], abs=1e-4)
            assert answer["no_answer_score"] == pytest.approx(odds[qid], abs=1e-4)
    # Odds that equal the threshold leave an answer.
    session = albert.open_session(str(trained))
    score = session.answer(asked[qid])["no_answer_score"]
    session.source.metadata.settings["null_score_diff_threshold"] = score
    answer = session.answer(asked[qid])
    assert answer["answer"] == answer["best_answer"]


# --- With answers and without, and the threshold ---


def test_without_answers_the_threshold_of_the_checkpoints_evaluation_holds(trained, blind, capsys):
    # With the command for both versions.
    out = blind("--version_2_with_negative", f"--checkpoint={trained / 'model.ckpt-best'}", module=run_squad)
    assert "has questions without answers: no evaluation" in capsys.readouterr().err
    assert not (out / "eval_results.json").exists()
    assert results_of(out, "nbest_predictions") == results_of(trained, "nbest_predictions")
    assert answered(out) == answered(trained)


def test_a_given_threshold_holds_and_is_forgotten_by_the_next_prediction(workshop, trained, blind, tmp_path):
    odds = sorted(results_of(trained, "null_odds").values())
    model, middle = tmp_path / "model", odds[len(ANIMALS)]
    shutil.copytree(trained, model)
    assert squad_2(workshop, model, f"--null_score_diff_threshold={odds[0] - 9}") == 0
    assert set(answered(model).values()) == {False}
    assert results_of(model, "eval_results")["f1"] == 50.0
    out = blind(f"--null_score_diff_threshold={middle}")
    assert answered(out) == within(out, middle) != answered(trained)
    assert answered(blind(f"--checkpoint={model}")) == answered(trained) != answered(model)


def test_a_checkpoint_that_is_copied_alone_keeps_the_threshold_of_its_evaluation_else_it_is_0(
    trained, blind, tmp_path
):
    model = tmp_path / "model"
    model.mkdir()
    for pattern in ("model.ckpt-best.*", "albert_config.json", "spiece.model", "tokenizer_config.json"):
        for path in trained.glob(pattern):
            shutil.copy(path, model)
    threshold = results_of(trained, "eval_results")["null_score_diff_threshold"]
    assert threshold and pretrained.open_path(str(model)).metadata.settings[
        "null_score_diff_threshold"] == threshold
    assert answered(blind(f"--checkpoint={model}")) == answered(trained)
    state = files.read_sealed_json(str(model / "model.ckpt-best.json"))
    del state["metadata"]["settings"]["null_score_diff_threshold"]
    files.write_sealed_json(str(model / "model.ckpt-best.json"), state)
    out = blind(f"--checkpoint={model}")
    assert answered(out) == within(out, 0)


CAT = {"id": "1", "question": "Who sat?", "answers": [{"text": "cat", "answer_start": 4}]}


def questions(folder, *qas) -> str:
    path = folder / "asked.json"
    paragraph = {"context": "The cat sat on the mat.", "qas": [CAT, *qas]}
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    return f"--predict_file={path}"


def test_an_impossible_question_needs_no_list_of_answers(workshop, trained, tmp_path):
    asked = questions(tmp_path, {"id": "2", "question": "Why?", "is_impossible": True})
    assert squad_2(workshop, tmp_path, asked, f"--checkpoint={trained}") == 0
    results = results_of(tmp_path, "eval_results")
    assert (results["HasAns_total"], results["NoAns_total"]) == (1, 1)


def test_a_file_with_some_answers_is_predicted_and_not_evaluated(tuned, tmp_path, capsys):
    asked, run = questions(tmp_path, {"id": "2", "question": "Where?"}), tuned("squad")
    given = [*run.flags, asked, f"--checkpoint={run.out}", f"--output_dir={tmp_path}"]
    assert jobs.squad(*given, "--nodo_train", f"--export_dir={tmp_path / 'served'}") == 0
    said = capsys.readouterr().err
    assert "has questions without answers: no evaluation" in said
    assert "--export_dir: no effect on SQuAD: serve a session" in said and not (tmp_path / "served").exists()
    assert list(results_of(tmp_path, "predictions")) == ["1", "2"]
    assert not (tmp_path / "eval_results.json").exists()
    training = ["--checkpoint=", "--num_train_epochs=9", "--do_eval"]
    assert jobs.squad(*given, *training) == 2
    said = capsys.readouterr().err
    assert "8 questions: 18 steps, 1 of them warm-up" in said  # rounded down, as in the original
    line = assert_one_clear_line(said)
    assert "--do_eval: " in line and "cannot be evaluated" in line


# --- Refusals ---

REFUSED = [
    (["--start_n_top=4"], "--start_n_top: only with --version_2_with_negative"),
    (["--null_score_diff_threshold=0", "--dropout_prob=0.2"],
     "--dropout_prob, --null_score_diff_threshold: only with --version_2_with_negative"),
    (["2.0", "--pack_rows", "--pad_to_max_seq_length"],
     "--pack_rows has no effect with --pad_to_max_seq_length"),
    (["2.0", "--end_n_top=49"], "--end_n_top=49 exceeds --max_seq_length=48"),
    (["--do_train"], "--train_file is required"),
]


def test_flags_of_which_one_would_win_in_silence_are_refused(workshop, tmp_path, capsys):
    for arguments, message in REFUSED:
        if arguments[0] == "2.0":
            arguments = ["--version_2_with_negative", *arguments[1:]]
        assert squad_2(workshop, tmp_path / "out", *arguments, module=run_squad) == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)
        assert not (tmp_path / "out").exists(), message

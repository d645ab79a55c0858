"""run_squad_v1, run_squad_v2 and run_squad: trained, evaluated, predicted, refused."""

import json
import shutil

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
import jobs
from helpers import ANIMALS, assert_one_clear_line, assert_same_gradients, dataset, write_config

import albert
from albert import modeling, run_squad, run_squad_v1, run_squad_v2
from albert.cli import flags
from albert.config import AlbertConfig
from albert.formats import checkpoints, pretrained
from albert.tasks.squad.task import SquadV1Task, SquadV2Task
from albert.training.history import History

COMMANDS = {"v1": run_squad_v1, "v2": run_squad_v2, "both": run_squad}


def command(version: str, *arguments) -> int:
    module = COMMANDS[version]
    return flags.run_command(
        module.__doc__, module.define_flags, module.main, [version, *map(str, arguments)]
    )


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    for version in (1, 2):
        for name, with_answers in (("dev", True), ("blind", False)):
            path = folder / f"{name}-v{version}.json"
            path.write_text(json.dumps(dataset(with_answers, version == 2)))
    text = [p["context"].lower() for p in dataset(False, False)["data"][0]["paragraphs"]]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((text + ["who sat on the mat? who flew over the sea?"]) * 9),
        model_prefix=str(folder / "spm"), vocab_size=70, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"], hard_vocab_limit=False, minloglevel=2,
    )
    size = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    write_config(folder, vocab_size=size.get_piece_size(), max_position_embeddings=64)
    return folder


def job(workshop, version: int, out, *more) -> list[str]:
    return [
        f"--albert_config_file={workshop / 'albert_config.json'}",
        f"--spm_model_file={workshop / 'spm.model'}", f"--output_dir={out}",
        f"--predict_file={workshop / f'dev-v{version}.json'}",
        "--max_seq_length=48", "--doc_stride=8", "--max_query_length=12",
        "--train_batch_size=4", "--learning_rate=3e-3", *more,
    ]


def train(workshop, version: int, out, *more) -> int:
    return command(
        f"v{version}",
        *job(workshop, version, out, f"--train_file={workshop / f'dev-v{version}.json'}",
             "--do_train", "--do_predict", "--num_train_epochs=3", "--seed=2",
             "--save_checkpoints_steps=3", *more),
    )


@pytest.fixture(scope="module")
def trained(workshop, tmp_path_factory):
    """{version: output_dir} of runs that trained and predicted."""
    folders = {version: tmp_path_factory.mktemp(f"trained{version}") for version in (1, 2)}
    for version, folder in folders.items():
        assert train(workshop, version, folder) == 0
    return folders


@pytest.mark.parametrize("version", [1, 2])
def test_it_trains_keeps_the_best_by_f1_and_predicts_with_it(version, trained):
    folder = trained[version]
    results = json.loads((folder / "eval_results.json").read_text())
    best = json.loads((folder / "best.json").read_text())
    assert best["metric"] == "f1" and best["value"] == results["f1"]
    assert {1: "exact_match", 2: "exact"}[version] in results
    assert "loss" not in results  # the evaluated windows have no labels
    answers = json.loads((folder / "predictions.json").read_text())
    for name in ("predictions.json", "nbest_predictions.json"):  # in the original's form
        text = (folder / name).read_text()
        assert text == json.dumps(json.loads(text), indent=4) + "\n"
    asked = [f"{i}-{kind}" for i in range(len(ANIMALS)) for kind in ("who", "none")[:version]]
    assert list(answers) == asked
    nbest = json.loads((folder / "nbest_predictions.json").read_text())
    assert list(nbest) == asked and set(nbest["0-who"][0]) == {
        "text", "probability", "start_log_prob", "end_log_prob"
    }
    assert (folder / "null_odds.json").exists() == (version == 2)
    # What the best checkpoint says of the predictions that it wrote.
    from albert.tasks.squad import metrics

    golds = {
        qa["id"]: [answer["text"] for answer in qa["answers"]]
        for paragraph in dataset(True, version == 2)["data"][0]["paragraphs"]
        for qa in paragraph["qas"]
    }
    evaluate = metrics.evaluate_v1 if version == 1 else metrics.evaluate_v2
    assert evaluate(golds, answers)["f1"] == pytest.approx(results["f1"])


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_without_answers_is_predicted_without_the_training_file(
    version, workshop, trained, tmp_path
):
    blind = f"--predict_file={workshop / f'blind-v{version}.json'}"
    named = f"--checkpoint={trained[version] / 'model.ckpt-best'}"
    out = tmp_path / "b"
    assert command("both", *job(workshop, version, out, blind, named, "--do_predict"),
                   *(["--version_2_with_negative"] if version == 2 else [])) == 0
    assert not (out / "eval_results.json").exists()
    theirs = json.loads((trained[version] / "nbest_predictions.json").read_text())
    assert json.loads((out / "nbest_predictions.json").read_text()) == theirs


def test_training_goes_on_where_it_stopped_to_the_same_bits(
    workshop, trained, tmp_path, monkeypatch
):
    jobs.sigterm_when(monkeypatch, History, "note", lambda *_: True)
    assert train(workshop, 1, tmp_path / "out") == 143
    assert max(checkpoints.list_steps(str(tmp_path / "out"))) < 6
    assert train(workshop, 1, tmp_path / "out") == 0
    jobs.assert_same_run(tmp_path / "out", trained[1], 6)


def test_version_1_is_exported_for_serving(workshop, tmp_path):
    assert train(workshop, 1, tmp_path, f"--export_dir={tmp_path / 'served'}") == 0
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    rows = {
        name: tf.ones([2, 48], tf.int32) for name in ("input_ids", "input_mask", "segment_ids")
    }
    outputs = served(**rows)
    assert {name: value.shape.as_list() for name, value in outputs.items()} == {
        "start_logits": [2, 48], "end_logits": [2, 48]
    }


# The original's training graph.
@pytest.mark.parametrize("version", [1, 2])
def test_losses_and_gradients_are_the_originals(version, golden_path):
    folder = golden_path(f"heads/squad_v{version}")
    golden = np.load(folder / "io.npz")
    batch = {k[3:]: tf.constant(golden[k]) for k in golden.files if k.startswith("in/")}
    batch["is_real_example"] = tf.ones(batch["input_ids"].shape[0], tf.int32)
    length = batch["input_ids"].shape[1]
    task = SquadV1Task(length) if version == 1 else SquadV2Task(length, end_n_top=4)
    model = task.build_model(AlbertConfig.from_json_file(str(folder / "albert_config.json")))
    weights = modeling.named_weights(model)
    reader = tf.train.load_checkpoint(str(folder / "model.ckpt"))
    for name, weight in weights.items():
        weight.assign(reader.get_tensor(name))
    with tf.GradientTape() as tape:
        outputs = model(batch)
        sums, divisors = task.loss_sums(batch, outputs), task.loss_weights(batch)
        loss = tf.add_n([sums[name] / divisors[name] for name in sums])
    np.testing.assert_allclose(loss, golden["train/loss"], rtol=1e-5)
    gradients = tape.gradient(loss, [w.value for w in weights.values()])
    without = {str(name) for name in golden["train/variables_without_gradient"]}
    found = dict(zip(weights, gradients, strict=True))
    assert {name for name, gradient in found.items() if gradient is None} <= without
    ours = {n: tf.convert_to_tensor(g).numpy() for n, g in found.items() if g is not None}
    assert_same_gradients(ours, {name: golden[f"train/grad/{name}"] for name in ours})


def questions(folder, *qas, context="The cat sat on the mat.", name="asked.json"):
    path = folder / name
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}))
    return f"--predict_file={path}"


CAT = {"id": "1", "question": "Who sat?", "answers": [{"text": "cat", "answer_start": 4}]}


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_with_some_answers_is_predicted_and_not_evaluated(
    version, workshop, trained, tmp_path, capsys
):
    asked = questions(tmp_path, CAT, {"id": "2", "question": "Where?"})
    named = f"--checkpoint={trained[version]}"
    done = command(f"v{version}", *job(workshop, version, tmp_path, asked, named, "--do_predict"))
    assert done == 0, capsys.readouterr().err
    assert list(json.loads((tmp_path / "predictions.json").read_text())) == ["1", "2"]
    assert not (tmp_path / "eval_results.json").exists()
    assert "has questions without answers: no evaluation" in capsys.readouterr().err


def test_an_impossible_question_needs_no_list_of_answers(workshop, trained, tmp_path):
    asked = questions(tmp_path, CAT, {"id": "2", "question": "Why?", "is_impossible": True})
    arguments = job(workshop, 2, tmp_path, asked, f"--checkpoint={trained[2]}", "--do_predict")
    assert command("v2", *arguments) == 0
    results = json.loads((tmp_path / "eval_results.json").read_text())
    assert (results["HasAns_total"], results["NoAns_total"]) == (1, 1)


def test_answers_to_evaluate_are_checked_before_anything_is_done(workshop, tmp_path, capsys):
    asked = questions(tmp_path, CAT | {"answers": [{"text": 5, "answer_start": 0}]})
    arguments = job(workshop, 1, tmp_path / "out", asked, "--do_predict")
    assert command("v1", *arguments) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "data[0].paragraphs[0].qas[0].answers[0]: 'text' must be a string, got 5" in line


def null_odds(folder):
    return json.loads((folder / "null_odds.json").read_text())


def answered(folder):
    return {k: bool(v) for k, v in json.loads((folder / "predictions.json").read_text()).items()}


def test_without_answers_the_threshold_of_the_checkpoints_evaluation_holds(
    workshop, trained, tmp_path
):
    blind = f"--predict_file={workshop / 'blind-v2.json'}"
    arguments = job(workshop, 2, tmp_path, blind, f"--checkpoint={trained[2]}", "--do_predict")
    assert command("v2", *arguments) == 0
    found = json.loads((trained[2] / "eval_results.json").read_text())
    threshold = found["null_score_diff_threshold"]
    assert answered(tmp_path) == {k: odds <= threshold for k, odds in null_odds(tmp_path).items()}
    assert answered(tmp_path) == answered(trained[2])


def test_a_session_leaves_the_questions_unanswered_that_the_evaluation_did(
    workshop, trained, tmp_path
):
    predicted = json.loads((trained[2] / "predictions.json").read_text())
    [article] = json.loads((workshop / "dev-v2.json").read_text())["data"]
    asked = {
        qa["id"]: (qa["question"], paragraph["context"])
        for paragraph in article["paragraphs"] for qa in paragraph["qas"]
    }
    assert {bool(text) for text in predicted.values()} == {True, False}
    source = pretrained.open_path(str(trained[2]))
    kind = albert.AlbertForBeamQuestionAnswering
    kind.from_pretrained(str(trained[2])).save_pretrained(str(tmp_path))
    shutil.copy(source.vocabulary.spm_model_file, tmp_path)
    for model in (trained[2], tmp_path):
        answers = dict(zip(
            asked, albert.open_session(str(model)).answer(asked.values()), strict=True
        ))
        assert {qid: answer["answer"] for qid, answer in answers.items()} == predicted
        assert all(answer["best_answer"] for answer in answers.values())


@pytest.mark.parametrize("name", ["dev", "blind"])
def test_a_given_threshold_holds_with_answers_and_without(name, workshop, trained, tmp_path):
    middle = sorted(null_odds(trained[2]).values())[len(ANIMALS)]
    arguments = job(
        workshop, 2, tmp_path, f"--predict_file={workshop / f'{name}-v2.json'}", "--do_predict",
        f"--checkpoint={trained[2]}", f"--null_score_diff_threshold={middle}",
    )
    assert command("v2", *arguments) == 0
    assert answered(tmp_path) == {k: odds <= middle for k, odds in null_odds(tmp_path).items()}
    assert set(answered(tmp_path).values()) == {True, False}


def test_a_given_threshold_is_forgotten_by_the_next_prediction(workshop, trained, tmp_path):
    model, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(trained[2], model)
    never = min(null_odds(model).values()) - 9
    given = f"--null_score_diff_threshold={never}"
    assert command("v2", *job(workshop, 2, model, given, "--do_predict")) == 0
    assert set(answered(model).values()) == {False}
    assert json.loads((model / "eval_results.json").read_text())["f1"] == 50.0
    blind = f"--predict_file={workshop / 'blind-v2.json'}", f"--checkpoint={model}"
    assert command("v2", *job(workshop, 2, out, *blind, "--do_predict")) == 0
    assert answered(out) == answered(trained[2]) != answered(model)


def test_the_threshold_of_another_step_is_not_taken(workshop, trained, tmp_path):
    model, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(trained[2], model)
    results = json.loads((model / "eval_results.json").read_text())
    always = {"best_f1_thresh": 99.0, "null_score_diff_threshold": 99.0}
    (model / "eval_results.json").write_text(json.dumps(results | always | {"global_step": 999}))
    blind = f"--predict_file={workshop / 'blind-v2.json'}", f"--checkpoint={model}"
    assert command("v2", *job(workshop, 2, out, *blind, "--do_predict")) == 0
    assert answered(out) == {k: value <= 0 for k, value in null_odds(out).items()}


def test_without_an_evaluation_the_threshold_is_0(workshop, trained, tmp_path):
    for file in trained[2].glob("model.ckpt-best.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    blind = f"--predict_file={workshop / 'blind-v2.json'}"
    named = f"--checkpoint={tmp_path / 'model.ckpt-best'}"
    arguments = job(workshop, 2, tmp_path / "out", blind, named, "--do_predict")
    assert command("v2", *arguments) == 0
    odds = null_odds(tmp_path / "out")
    assert answered(tmp_path / "out") == {k: value <= 0 for k, value in odds.items()}


@pytest.mark.parametrize("flag", ["train_feature_file", "predict_feature_file"])
def test_a_feature_file_of_the_original_is_never_overwritten(
    flag, workshop, tmp_path, capsys, golden_path
):
    original = tmp_path / "original.tfrecord"
    content = golden_path("squad_odd/train-v2.0.s96.tfrecord").read_bytes()
    original.write_bytes(content)
    arguments = job(
        workshop, 2, tmp_path / "out", f"--train_file={workshop / 'dev-v2.json'}", "--do_train",
        "--do_predict", f"--{flag}={original}",
    )
    # It is of other lengths: training says so, prediction does not know what it is of.
    assert command("v2", *arguments) == 2
    is_training = flag == "train_feature_file"
    message = "has max_seq_length 96" if is_training else "original.tfrecord is not overwritten"
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert original.read_bytes() == content


@pytest.mark.slow
def test_a_best_checkpoint_that_training_evaluated_predicts_without_another_run_of_it(
    workshop, trained, tmp_path, monkeypatch
):
    from albert.training import evaluation

    monkeypatch.setattr(evaluation, "evaluate", None)
    assert train(workshop, 2, tmp_path) == 0
    for name in ("predictions.json", "eval_results.json"):
        assert (tmp_path / name).read_bytes() == (trained[2] / name).read_bytes()


def test_rows_of_2_0_lose_the_padding_that_they_share_with_the_same_answers(
    workshop, trained, tmp_path
):
    nbest = []
    padded, wide = ["--pad_to_max_seq_length"], ["--start_n_top=40", "--end_n_top=5"]
    # Rows of 32 places are narrower than a beam of 40.
    for number, more in enumerate((padded, [], padded + wide, wide)):
        out = tmp_path / str(number)
        arguments = job(workshop, 2, out, f"--checkpoint={trained[2]}", "--do_predict", *more)
        assert command("v2", *arguments) == 0
        nbest.append(json.loads((out / "nbest_predictions.json").read_text()))
    for guid, entries in nbest[0].items():
        for ours, theirs in zip(nbest[1][guid], entries, strict=True):
            assert ours["text"] == theirs["text"]
            assert ours["probability"] == pytest.approx(theirs["probability"], abs=1e-5)
        assert nbest[3][guid][0]["text"] == nbest[2][guid][0]["text"]
    assert SquadV2Task(48).feature_spec().row_length == 48
    assert SquadV1Task(48).feature_spec().row_length is None


@pytest.mark.slow
def test_early_stopping_needs_no_flag_but_answers(workshop, tmp_path, capsys):
    more = ["--early_stopping_patience=9"]
    assert train(workshop, 1, tmp_path / "a", "--num_train_epochs=1", *more) == 0
    blind = f"--predict_file={workshop / 'blind-v1.json'}"
    assert train(workshop, 1, tmp_path / "b", blind, *more) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "--early_stopping_patience:" in line and "cannot be evaluated" in line


BAD = {
    "nothing to do": (1, [], "at least one of"),
    "no train file": (1, ["--do_train"], "--train_file is required"),
    "too short": (1, ["--do_predict", "--max_seq_length=15"], "must be greater than"),
    "proportion": (1, ["--do_predict", "--warmup_proportion=2"], "must be a number, from 0 to 1"),
    "beam": (2, ["--do_predict", "--start_n_top=0"], "--start_n_top=0"),
    "threshold": (2, ["--do_predict", "--null_score_diff_threshold=nan"], "threshold=nan"),
    "wide beam": (2, ["--do_predict", "--end_n_top=49"],
                  "--end_n_top=49 exceeds --max_seq_length=48"),
    "passes": (1, ["--do_train", "--train_file={dev}", "--num_train_epochs=nan"],
               "--num_train_epochs=nan: must be a number, above 0"),
    "endless": (1, ["--do_train", "--train_file={dev}", "--num_train_epochs=inf"],
                "--num_train_epochs=inf: must be a number, above 0"),
    "no checkpoint": (1, ["--do_predict"], "train first"),
    "few questions": (1, ["--do_train", "--train_file={dev}", "--train_batch_size=99"],
                      "8 questions make no step"),
    "no file": (1, ["--do_predict", "--predict_file=absent.json"], "absent.json"),
}


@pytest.mark.parametrize("arguments, message", [
    (["--start_n_top=4"], "--start_n_top: only with --version_2_with_negative"),
    (["--null_score_diff_threshold=0", "--dropout_prob=0.2"],
     "--dropout_prob, --null_score_diff_threshold: only with --version_2_with_negative"),
    (["--version_2_with_negative", "--pack_rows", "--pad_to_max_seq_length"],
     "--pack_rows has no effect with --pad_to_max_seq_length"),
    (["--version_2_with_negative", "--export_dir=x"], "--export_dir is of SQuAD 1.1"),
    (["--warmup_step=1", "--warmup_proportion=0.1"],
     "give one of --warmup_step and --warmup_proportion"),
    (["--train_step=1", "--num_train_epochs=2"], "give one of --train_step and --num_train_epochs"),
    (["--pack_rows"], "--pack_rows has no effect on SQuAD 1.1"),
])
def test_flags_of_which_one_would_win_in_silence_are_refused(
    arguments, message, workshop, tmp_path, capsys
):
    flags_given = job(workshop, 1, tmp_path / "out", "--do_predict", *arguments)
    assert command("both", *flags_given) == 2
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("case", BAD)
def test_usage_errors_are_one_line(case, workshop, tmp_path, capsys):
    version, more, message = BAD[case]
    more = [flag.replace("{dev}", str(workshop / "dev-v1.json")) for flag in more]
    assert command(f"v{version}", *job(workshop, version, tmp_path / "out", *more)) == 2
    assert message in assert_one_clear_line(capsys.readouterr().err)

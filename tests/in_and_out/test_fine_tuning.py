"""The fine-tuning commands: what a run of each leaves, predicts and refuses.

test_run_squad has more of SQuAD.
"""

import importlib.util
import json
import re
import shutil

import jobs
import numpy as np
import pytest
import tensorflow as tf
from helpers import REPO, assert_one_clear_line, metrics, results_of, write_config

import albert
from albert import finetune, modeling, run_classifier
from albert.cli import encoder, flags
from albert.config import AlbertConfig
from albert.finetune import settings_of
from albert.formats import checkpoints, pretrained
from albert.tasks.words import entity_scores, find_entities

each_task = pytest.mark.parametrize("name", jobs.TUNERS)


def rows_of(path):
    return [line.split("\t") for line in path.read_text().splitlines()]


def numbers_of(path):
    return np.array(rows_of(path), float)


# --- One run of each command ---

OF_LABELS = {"eval_accuracy", "eval_loss", "global_step", "loss"}
RESULTS = {
    "classifier": OF_LABELS,
    "squad": {"exact_match", "f1", "global_step"},  # the evaluated windows have no labels: no loss
    "race": OF_LABELS | {"eval_accuracy_middle", "eval_accuracy_high"},
    "tokens": OF_LABELS | {"eval_f1", "eval_f1_PER", "eval_precision", "eval_recall"},
}


@each_task
def test_a_run_keeps_the_best_checkpoint_and_writes_its_results(name, tuned):
    tuner, out = jobs.TUNERS[name], tuned(name).out
    evaluated = [line for line in metrics(out) if line["kind"] == "eval"]
    assert [line["step"] for line in evaluated] == [tuner.last // 2, tuner.last]
    best, kept = max(evaluated, key=lambda line: line[tuner.metric]), results_of(out, "best")
    assert [kept[k] for k in ("metric", "value", "step")] == [tuner.metric, best[tuner.metric], best["step"]]
    results = results_of(out)
    assert set(results) == RESULTS[name]
    assert results == {k: v for k, v in best.items() if k not in ("kind", "step")} | {
        "global_step": best["step"]
    }
    text = (out / "eval_results.txt").read_text().splitlines()
    assert text == [f"{key} = {results[key]}" for key in sorted(results)]
    weights = checkpoints.open_weights(str(out / "model.ckpt-best"))
    assert weights.read("global_step") == best["step"]


# Tests of the other two name checkpoints as well.
@pytest.mark.parametrize("name", ["squad", "tokens"])
def test_a_named_checkpoint_is_evaluated_and_predicts_as_its_run_did(name, tuned, tmp_path):
    tuner, whole = jobs.TUNERS[name], tuned(name)
    more = ["--nodo_train", f"--output_dir={tmp_path / 'new'}", f"--checkpoint={whole.out}",
            "--eval_batch_size=3"]  # which pads the last batch differently
    if name == "tokens":
        more.append("--pad_to_max_seq_length")  # must make no difference
    assert tuner.run(*whole.flags, *more) == 0
    found, expected = results_of(tmp_path / "new"), results_of(whole.out)
    for results in (found, expected):
        results.pop("loss", None)  # a mean over batches
    assert found == pytest.approx(expected, abs=1e-5)
    for file in tuner.results[1:]:
        assert (tmp_path / "new" / file).read_text() == (whole.out / file).read_text(), file
    assert not (tmp_path / "new/metrics.jsonl").exists()


def test_the_named_checkpoint_is_used_else_the_best_else_the_newest_else_the_first(tuned, tmp_path):
    out = tuned("classifier").copy(tmp_path / "out").out
    directory, first = str(out), checkpoints.open_weights(str(out / "model.ckpt-3"))

    def used(checkpoint=None):
        return finetune.weights_to_use(checkpoint, directory, first).origin

    assert used(f"{out}/model.ckpt-6") == f"{out}/model.ckpt-6"
    assert used() == f"{out}/model.ckpt-best"
    for kept, expected in (("best", "model.ckpt-6"), ("[0-9]", "model.ckpt-3")):
        for path in out.glob(f"model.ckpt-{kept}*"):
            path.unlink()
        assert used() == f"{out}/{expected}"


def test_passes_over_the_data_are_made_to_their_end():
    given = ["--output_dir=o", "--do_train", "--train_batch_size=4", "--num_train_epochs=1.25"]
    settings = settings_of(flags.parse(run_classifier.define_flags, ["x", *given]))
    assert [settings.with_steps(count).train_step for count in (1, 8, 9, 10)] == [1, 3, 3, 4]


# --- run_classifier ---


def test_a_session_and_the_export_give_the_prediction_of_each_row_of_the_test_file(tuned, tmp_path, capsys):
    run, export = tuned("classifier"), tmp_path / "export"
    assert jobs.classify(
        *run.flags, "--nodo_train", "--nodo_eval", "--nodo_predict", f"--checkpoint={run.out}",
        f"--output_dir={tmp_path / 'out'}", f"--export_dir={export}", "--threshold_to_export=0.25",
    ) == 0
    assert "--threshold_to_export: no effect" in capsys.readouterr().err
    serve = tf.saved_model.load(str(export)).signatures["serving_default"]
    lines = (run.out.parent / "SST-2/test.tsv").read_text().splitlines()[1:]
    texts = [line.split("\t")[1] for line in lines]
    expected = numbers_of(run.out / "test_results.tsv")
    tokenizer = albert.AlbertTokenizer.from_pretrained(run.out)
    inputs = tokenizer(texts, padding=True, max_length=12, return_tensors="tf")
    served = serve(**inputs)
    np.testing.assert_allclose(tf.nn.softmax(served["logits"]), expected, atol=1e-5)
    answers = albert.open_session(str(run.out)).classify(texts)
    found = [[answer["probabilities"][label] for label in "01"] for answer in answers]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_best_checkpoint_of_a_regression_has_the_highest_correlation(tmp_path, begin):
    (tmp_path / "STS-B").mkdir()
    for split in ("train", "dev"):
        rows = ["x\t" * 7 + f"w{i} w{i + 2}\tw{2 * i} w5\t{i % 6}" for i in range(11)]
        (tmp_path / f"STS-B/{split}.tsv").write_text("\n".join(["h\t" * 9 + "score", *rows]))
    given = jobs.classifier_flags(tmp_path, task_name="sts-b", max_seq_length=12)
    (task, *_), _ = begin(jobs.classify, *given, "--do_train", "--do_eval")
    assert (task.best_metric, task.num_labels) == ("pearson", 1)


def test_every_file_of_an_output_directory_is_told(tuned):
    out = tuned("classifier").out
    told = (REPO / "docs/reference/file_formats.md").read_text(encoding="utf-8")
    patterns = [
        re.escape(name).replace("<step>", r"(\d+|best)").replace(r"\*", ".*")
        .replace("<task>", r"[\w-]+").replace("<split>", r"\w+").replace("<key>", r"\w+")
        for name in re.findall(r"`([\w.*<>-]+)`", told)
    ]
    names = [path.name for path in out.iterdir() if path.is_file()]
    assert len(names) > 10
    for name in names:
        assert any(re.fullmatch(pattern, name) for pattern in patterns), name


@pytest.mark.parametrize("name", ["", "model.ckpt-best"])
def test_a_models_directory_or_its_checkpoint_is_enough_to_start_from(name, tmp_path):
    given = dict(flag.removeprefix("--").split("=") for flag in jobs.classifier_flags(tmp_path))
    model = modeling.AlbertForMaskedLM(AlbertConfig.from_json_file(given["albert_config_file"]))
    (folder := tmp_path / "model").mkdir()
    pretrained.save(model, str(folder), is_archive=True)
    shutil.copy(given["vocab_file"], folder)
    values = flags.parse(run_classifier.define_flags, ["x", f"--init_checkpoint={folder / name}"])
    found = encoder.open_encoder(values, 8)
    assert found.config == model.config
    assert found.tokenizer.vocab == albert.tokenization.FullTokenizer(given["vocab_file"]).vocab
    name = "bert/embeddings/word_embeddings"
    np.testing.assert_array_equal(found.weights.read(name), modeling.named_weights(model)[name])


# --- run_race ---


RIGHT = [*"ADCB", *"ABDBCBBB"]  # the answers to the test questions, and to those of dev


def test_accuracy_is_told_overall_and_for_each_level_and_predictions_have_its_hits(tuned):
    out = tuned("race").out
    results = results_of(out)
    # Four questions at the middle level, eight at the high level.
    hits = [results[f"eval_accuracy_{level}"] * n for level, n in (("middle", 4), ("high", 8))]
    assert results["eval_accuracy"] * 12 == pytest.approx(sum(hits))
    values = np.array(rows_of(out / "test_results.tsv"), float)
    assert values.shape == (12, 4)
    header, *submit = rows_of(out / "submit_results.tsv")
    assert header == ["index", "prediction"]
    assert [guid for guid, _ in submit[2:7]] == [
        "middle2.txt-0", "middle3.txt-0", "high0.txt-0", "high0.txt-1", "high1.txt-0",
    ]
    assert [answer for _, answer in submit] == ["ABCD"[i] for i in values.argmax(axis=1)]
    found = [a == b for a, (_, b) in zip(RIGHT, submit, strict=True)]
    assert [sum(found[:4]), sum(found[4:])] == pytest.approx(hits)
    title, *lines = (out / "predict_results.txt").read_text().splitlines()
    assert title == "***** Predict results *****" and lines[:-1] == sorted(lines[:-1])
    assert lines[-1] == f"best = {results_of(out, 'best')['value']}"
    predicted = results_of(out, "predict_results")
    assert predicted == pytest.approx(results) and f"eval_loss = {predicted['eval_loss']}" in lines


def test_a_named_checkpoint_has_its_runs_results_and_a_level_alone_its_part_of_them(tuned, tmp_path, capsys):
    run, features = tuned("race"), tmp_path / "dev.tfrecord"
    features.write_bytes(b"x")  # as the original wrote it

    def results(name, *more):
        given = *run.flags, "--nodo_train", f"--checkpoint={run.out}", f"--output_dir={tmp_path / name}"
        assert jobs.race(*given, *more) == 0
        return results_of(tmp_path / name)

    whole = results("all", f"--eval_file={features}")
    assert "--eval_file: no effect: features are kept in memory" in capsys.readouterr().err
    assert features.read_bytes() == b"x"
    # The best result of a run is reported with its checkpoint, wherever that predicts.
    predicted = "predict_results.txt"
    assert (tmp_path / "all" / predicted).read_text() == (run.out / predicted).read_text()
    assert whole == pytest.approx(results_of(run.out), abs=1e-5)
    shutil.copytree(run.out.parent / "RACE", tmp_path / "RACE")
    (tmp_path / "RACE/test/high/0.txt").unlink()
    alone = results("high", "--high_only", f"--data_dir={tmp_path}")
    assert alone["eval_accuracy"] == alone["eval_accuracy_high"] == pytest.approx(whole["eval_accuracy_high"])
    assert "eval_accuracy_middle" not in alone
    predicted = results_of(tmp_path / "high", "predict_results")  # of other questions than dev
    assert predicted["eval_accuracy"] == predicted["eval_accuracy_high"]
    assert len(rows_of(tmp_path / "high/test_results.tsv")) == 6


def test_predict_chooses_as_the_command_did(tuned, tmp_path):
    run = tuned("race")
    lines = []
    for level in ("middle", "high"):
        for path in sorted((run.out.parent / "RACE/test" / level).iterdir()):
            one = json.loads(path.read_text())
            lines += ["\t".join([one["article"], question, *options]) for question, options in
                      zip(one["questions"], one["options"], strict=True)]
    answers = jobs.ask(tmp_path, run.out, lines)
    found = [[answer["probabilities"][letter] for letter in "ABCD"] for answer in answers]
    expected = np.array(rows_of(run.out / "test_results.tsv"), float)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_own_questions_may_have_any_number_of_options_also_different_ones(tmp_path, capsys):
    """Options that a question does not have are never chosen."""
    (folder := tmp_path / "data").mkdir()
    for split in ("train", "dev", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({
            "id": str(i), "article": f"w{i} w{i + 1}", "questions": ["w3 _", "w4"],
            "options": [[f"w{n}" for n in range(5)], ["w6", "w7"]],
            "answers": ["ABCDE"[i % 5], "AB"[i % 2]],
        }) + "\n" for i in range(8)))
    flags = [*jobs.race_flags(tmp_path), f"--data_dir={folder}"]
    assert jobs.race(*flags, "--middle_only") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert line.endswith(
        f"--middle_only has no effect on {folder}/train.jsonl, whose questions have no level")
    assert jobs.race(*flags) == 0
    table = (tmp_path / "out/test_results.tsv").read_text().splitlines()
    probabilities = np.array([[float(x) for x in line.split("\t")] for line in table])
    assert probabilities.shape == (16, 5) and (probabilities[1::2, 2:] == 0).all()
    assert (probabilities[::2] > 0).all()
    lines = [f"w{i} w{i + 1}\t{question}" for i in range(8) for question in (
        "w3 _\tw0\tw1\tw2\tw3\tw4", "w4\tw6\tw7"
    )]
    for size in ("--batch_size=3", "--batch_size=1"):
        answers = jobs.ask(tmp_path, tmp_path / "out", lines, size)
        for answer, row in zip(answers, probabilities, strict=True):
            found = list(answer["probabilities"].values())
            assert found == pytest.approx(row[row > 0], abs=1e-5)
            assert answer["label"] == "ABCDE"[row.argmax()]


# --- run_token_classifier ---


FIRST, LAST = [f"n{i}" for i in range(8)], [f"m{i}" for i in range(8)]
OTHERS = [f"w{i}" for i in range(18)]
VOCABULARY = [*jobs.SPECIALS, ".", *FIRST, *LAST, *OTHERS]


def sentence(rng, parts):
    """First names, half of them with a last name, among other words; in upper case, which is the same."""
    lines = []
    for word in rng.choice([*FIRST, *OTHERS], parts):
        lines.append(f"{str(word).upper()} x {'B-PER' if word in FIRST else 'O'}\n")
        if word in FIRST and rng.random() < 0.5:
            lines.append(f"{rng.choice(LAST)} x I-PER\n")
    return "".join(lines) + ". x O\n\n"


def write_conll(folder):
    rng = np.random.default_rng(4)
    # Some sentences are longer than a sequence.
    for split, count in (("train", 60), ("dev", 12), ("test", 7)):
        text = "".join(sentence(rng, 4 + 60 * (i % 6 == 0)) for i in range(count))
        if split == "test":  # with entities that cannot be found
            text += "w1 x B-PER\nw2 x I-PER\n. x O\n\n"
        (folder / f"{split}.txt").write_text("-DOCSTART- x O\n\n" + text)


def flags_of(folder):
    flags = jobs.token_flags(
        folder, max_seq_length=40, classifier_dropout=0, albert_dropout=0, learning_rate=0.005,
        train_step=60, warmup_step=6, save_checkpoints_steps=30, train_batch_size=16,
    )
    write_conll(folder)
    write_config(folder, max_position_embeddings=48, num_hidden_layers=1)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    return flags


@pytest.fixture(scope="module")
def trained(run_once):
    return run_once("names", jobs.label_words, flags_of, "--do_train", "--do_eval", "--do_predict")


def test_names_are_learned_and_every_word_predicted_as_the_results_say(trained):
    out = trained.out
    found = results_of(out)
    assert found["eval_f1"] > 0.8 and found["eval_accuracy"] > 0.9
    assert found["eval_f1_PER"] == found["eval_f1"]
    given = (out.parent / "test.txt").read_text().splitlines()
    written = (out / "test_predictions.txt").read_text().splitlines()
    assert [line.rsplit(" ", 1)[0] if line else "" for line in written] == given
    words = [line.split() for line in filter(None, written[2:])]
    gold, guessed = [word[-2] for word in words], [word[-1] for word in words]
    found = results_of(out, "predict_results")
    hits = np.mean([a == b for a, b in zip(gold, guessed, strict=True)])
    assert found["eval_accuracy"] == pytest.approx(hits) and hits < 1
    # The "." of every sentence is outside entities, so that concatenated sentences score the same.
    assert found["eval_f1"] == pytest.approx(entity_scores(gold, guessed)["eval_f1"])


def test_predict_labels_words_as_in_the_file_and_tells_entities_with_their_places(trained, tmp_path):
    sentences = [
        [line.split() for line in group.splitlines()]
        for group in (trained.out / "test_predictions.txt").read_text().split("\n\n") if group
    ][1:]
    lines = [" ".join(row[0] for row in one) for one in sentences]
    answers = jobs.ask(tmp_path, trained.out, [*lines, " "], "--is_tokenized")
    for one, answer in zip(sentences, answers[:-1], strict=True):
        assert answer["words"] == [row[0] for row in one]
        assert answer["labels"] == [row[-1] for row in one]
        assert len(answer["probabilities"]) == len(one) and min(answer["probabilities"]) > 1 / 3
    assert answers[-1] == {"words": [], "labels": [], "probabilities": [], "entities": []}
    text = "W1.  N3 M2. N1 M1 N2, N5."  # punctuation is separate
    (raw,) = jobs.ask(tmp_path, trained.out, [text])
    assert raw["words"] == ["W1", ".", "N3", "M2", ".", "N1", "M1", "N2", ",", "N5", "."]
    expected = find_entities(raw["labels"])
    assert len(expected) > 1
    for entity, (kind, first, last) in zip(raw["entities"], expected, strict=True):
        assert entity["type"] == kind
        assert entity["text"].replace(" ", "") == "".join(raw["words"][first : last + 1])
        assert text[entity["start"] : entity["end"]] == entity["text"]


def test_what_is_not_trained_takes_the_labels_of_the_checkpoint(trained, tmp_path, capsys):
    flags = [*trained.flags, f"--data_dir={tmp_path}", f"--output_dir={tmp_path}/out",
             f"--checkpoint={trained.out}"]
    # A file with fewer labels than in training, and one with none.
    (tmp_path / "dev.txt").write_text("n1 O\nw1 O\n")
    (tmp_path / "test.txt").write_text("n1\nw2\n\nw3\n")
    assert jobs.label_words(*flags, "--do_eval", "--do_predict") == 0
    assert results_of(tmp_path / "out")["eval_precision"] == 0.0
    written = (tmp_path / "out/test_predictions.txt").read_text()
    assert written == "n1 B-PER\nw2 O\n\nw3 O\n"
    assert not (tmp_path / "out/predict_results.json").exists()
    capsys.readouterr()
    for labels, message in (
        ("B-PER,I-PER", "dev.txt:1: label 'O' is not one of B-PER, I-PER"),
        ("O,I-PER,B-PER", "was trained with another label_list (['O', 'B-PER', 'I-PER'], not"),
    ):
        assert jobs.label_words(*flags, "--do_eval", f"--label_list={labels}") == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)


def test_word_classes_are_judged_by_accuracy_and_long_sentences_split(tmp_path, capsys, begin):
    flags = jobs.token_flags(tmp_path, train_step=2, train_batch_size=2, max_seq_length=6, warmup_step=0)
    for split in ("train", "dev"):
        (tmp_path / f"{split}.txt").write_text("w2 NN\n. ,\nw2 NN\nw3 NN\n. ,\n\nw1 VB\n" * 4)
    (task, *_), options = begin(
        jobs.label_words, *flags, "--scheme=none", "--do_train", "--do_eval")
    assert "sentences longer than --max_seq_length=6, split into windows: " in capsys.readouterr().err
    assert task.best_metric == "eval_accuracy" and task.score({}) == {}
    assert options["flags"]["conditions"]["label_list"] == [",", "NN", "VB"]


# --- Refusals, before anything is written ---

HAS_JAX = importlib.util.find_spec("jax") is not None

REFUSED = {
    "classifier": [
        (["--task_name=imdb"], "--task_name=imdb is not one of ax, cola, mismnli"),
        (["--nodo_train", "--nodo_eval", "--nodo_predict"],
         "at least one of --do_train, --do_eval, --do_predict and --export_dir is required"),
        (["--checkpoint=x"], "did you mean --init_checkpoint"),
        (["--notsv_header"], "--notsv_header: only with --train_file"),
        (["--pack_rows", "--pad_to_max_seq_length"],
         "--pack_rows has no effect with --pad_to_max_seq_length"),
        (["--task_name=ax", "--nodo_train"], "task ax has no dev file"),
        (["--albert_config_file="], "--init_checkpoint is required: small_en"),
        (["--vocab_file="], "--spm_model_file is required"),
        (["--vocab_file=absent.txt"], "no such file: absent.txt"),
        (["--nodo_train", "--nodo_eval"],
         "out: train first (--do_train) or pass --checkpoint"),
        *[(["--export_dir=x", "--engine=jax"], "--export_dir needs TensorFlow")] * HAS_JAX,
    ],
    "squad": [
        (["--nodo_train", "--nodo_predict"], "at least one of"),
        (["--max_seq_length=9"], "--max_seq_length=9 must be greater than --max_query_length=6"),
        (["--nodo_train"], "out: train first (--do_train) or pass --checkpoint"),
        (["--train_batch_size=99"], "of 8 questions are less than a batch"),
        (["--predict_file=absent.json"], "--predict_file: no such file: absent.json"),
        (["--warmup_step=1", "--warmup_proportion=0.1"],
         "pass only one of --warmup_step and --warmup_proportion"),
        (["--train_step=1"], "pass only one of --train_step and --num_train_epochs"),
        (["--pack_rows"], "--pack_rows has no effect on SQuAD 1.1"),
    ],
    "race": [
        (["--max_qa_length=12"], "--max_qa_length=12 leaves no room in --max_seq_length=14"),
        (["--high_only", "--middle_only"], "pass only one of --high_only and --middle_only"),
        (["--nodo_train", "--nodo_eval", "--nodo_predict"],
         "at least one of --do_train, --do_eval and --do_predict"),
        (["--data_dir=/nowhere"], "no such directory: /nowhere/RACE/train/middle; --data_dir must"),
    ],
    "tokens": [
        (["--data_dir=/nowhere"], "no such file: /nowhere/train.txt"),
        (["--nodo_train", "--nodo_eval", "--nodo_predict"],
         "at least one of --do_train, --do_eval and --do_predict"),
        (["--label_list=O"], "not two or more different labels"),
        (["--nodo_train"], "out: train first (--do_train) or pass --checkpoint"),
        (["--data_dir={}/bad"], "bad/dev.txt:2: I-PER cannot follow O"),
    ],
}


@each_task
def test_flags_and_files_that_cannot_work_are_refused_in_one_line(name, tmp_path, capsys):
    # test_fine_tuners has bad files of the other tasks.
    (tmp_path / "bad").mkdir()
    for split, text in (("train", "w1 B-PER\nw2 O\n"), ("dev", "w1 O\nw2 I-PER\n"), ("test", "w1 O\n")):
        (tmp_path / f"bad/{split}.txt").write_text(text)
    tuner = jobs.TUNERS[name]
    flags = [*tuner.flags(tmp_path), *tuner.asked]
    for arguments, message in REFUSED[name]:
        assert tuner.run(*flags, *(a.replace("{}", str(tmp_path)) for a in arguments)) == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)
        assert not list((tmp_path / "out").glob("*")), message


@each_task
def test_examples_that_the_vocabulary_cannot_read_are_warned_of(name, begin, tmp_path, capsys):
    tuner = jobs.TUNERS[name]
    flags = [*tuner.flags(tmp_path), *tuner.asked]
    begin(tuner.run, *flags)
    assert "가" not in capsys.readouterr().err
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "vocab.txt" and path.suffix in (".txt", ".tsv", ".json"):
            path.write_text(re.sub(r"\bw(\d)", r"가\1", path.read_text()))
    begin(tuner.run, *flags)
    (line,) = re.findall(".*unknown to the vocabulary.*", capsys.readouterr().err)  # of all files
    assert re.search(r"train.*tokens are unknown to the vocabulary \(most often [^)]*가", line)


def test_flags_of_the_original_that_count_for_nothing_are_named(caplog):
    for arguments, expected in (
        (["--albert_hub_module_handle=m", "--albert_config_file=c", "--spm_model_file=from_tf_hub"],
         "--albert_config_file: no effect with --albert_hub_module_handle"),
        (["--albert_config_file=c", "--spm_model_file=s", "--vocab_file=v"],
         "--vocab_file: no effect with --spm_model_file"),
        (["--albert_config_file=c", "--spm_model_file=s", "--vocab_file="], ""),
    ):
        caplog.clear()
        encoder.check_encoder_flags(flags.parse(run_classifier.define_flags, ["x", *arguments]))
        assert caplog.text.count("no effect") == bool(expected) and expected in caplog.text

"""run_classifier: predictions, exports, regressions, and where it starts from.

test_fine_tuning covers the behaviour common to the fine-tuning commands.
"""

import re
import shutil

import jobs
import numpy as np
import pytest
import tensorflow as tf
from helpers import NEEDS_JAX, REPO, assert_one_clear_line, results_of

import albert
from albert import modeling, run_classifier
from albert.cli import encoder, flags
from albert.config import AlbertConfig
from albert.formats import pretrained

RUN = ("--do_train", "--do_eval", "--do_predict")


def read_rows(path):
    return np.array([[float(x) for x in line.split("\t")] for line in path.read_text().splitlines()])


def test_predictions_have_a_line_for_each_row_of_the_test_file_and_padding_never_counts(tuned):
    out = tuned("classifier").out
    # 12 rows in batches of 5: an accuracy over 15 would not be a multiple of 1/12.
    hits = results_of(out)["eval_accuracy"] * 12
    assert hits == pytest.approx(round(hits), abs=1e-4)
    values = read_rows(out / "test_results.tsv")
    assert values.shape == (12, 2)
    np.testing.assert_allclose(values.sum(axis=1), 1, atol=1e-5)
    header, *submit = [x.split("\t") for x in (out / "submit_results.tsv").read_text().splitlines()]
    assert header == ["index", "prediction"]
    assert [int(index) for index, _ in submit] == list(range(100, 112))
    assert [int(label) for _, label in submit] == values.argmax(axis=1).tolist()
    # dev and test have the same texts, so that the predictions are as good as the measured accuracy.
    assert sum(int(label) == i % 2 for i, (_, label) in enumerate(submit)) == round(hits)


def test_a_session_and_the_export_give_the_predictions(tuned, tmp_path, capsys):
    run, export = tuned("classifier"), tmp_path / "export"
    assert jobs.classify(
        *run.flags, "--nodo_train", "--nodo_eval", "--nodo_predict", f"--checkpoint={run.out}",
        f"--output_dir={tmp_path / 'out'}", f"--export_dir={export}", "--threshold_to_export=0.25",
    ) == 0
    assert "--threshold_to_export: no effect" in capsys.readouterr().err
    serve = tf.saved_model.load(str(export)).signatures["serving_default"]
    lines = (run.out.parent / "SST-2/test.tsv").read_text().splitlines()[1:]
    texts = [line.split("\t")[1] for line in lines]
    expected = read_rows(run.out / "test_results.tsv")
    tokenizer = albert.AlbertTokenizer.from_pretrained(run.out)
    inputs = tokenizer(texts, padding=True, max_length=12, return_tensors="tf")
    served = serve(**inputs)
    np.testing.assert_allclose(tf.nn.softmax(served["logits"]), expected, atol=1e-5)
    answers = albert.open_session(str(run.out)).classify(texts)
    found = [[answer["probabilities"][label] for label in "01"] for answer in answers]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@NEEDS_JAX
def test_an_export_on_jax_is_refused_before_anything_is_read(tmp_path, capsys):
    more = "--export_dir=x", "--engine=jax"
    assert jobs.classify(*jobs.classifier_flags(tmp_path), "--do_train", *more) == 2
    assert "--export_dir needs TensorFlow" in assert_one_clear_line(capsys.readouterr().err)


def test_a_regression_reports_its_correlations_and_predicts_values(tmp_path):
    (tmp_path / "STS-B").mkdir()
    pairs = [(f"w{i} w{i + 2}", f"w{2 * i} w5") for i in range(11)]
    for split in ("train", "dev", "test"):
        rows = ["x\t" * 7 + f"{a}\t{b}" + f"\t{i % 6}" * (split != "test") for i, (a, b) in enumerate(pairs)]
        (tmp_path / f"STS-B/{split}.tsv").write_text("\n".join(["h\t" * 9 + "score", *rows]))
    given = jobs.classifier_flags(tmp_path, task_name="sts-b", train_step=2, max_seq_length=12)
    assert jobs.classify(*given, *RUN) == 0
    out = tmp_path / "out"
    results = results_of(out)
    assert set(results) == {"pearson", "spearman", "MSE", "eval_loss", "loss", "global_step"}
    best = results_of(out, "best")
    assert best["value"] == results[best["metric"]] and best["metric"] == "pearson"
    predicted = read_rows(out / "test_results.tsv")[:, 0]
    assert np.mean((predicted - np.arange(11) % 6) ** 2) == pytest.approx(results["MSE"], rel=1e-4)
    answers = albert.open_session(str(out)).classify(pairs)
    np.testing.assert_allclose([answer["value"] for answer in answers], predicted, atol=1e-5)


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


# --- Starting points ---


@pytest.mark.parametrize("layout", ["ours", "prefix", "huggingface"])
def test_a_models_directory_is_enough_to_start_from(layout, tmp_path):
    given = dict(flag.removeprefix("--").split("=") for flag in jobs.classifier_flags(tmp_path))
    tokenizer = albert.tokenization.FullTokenizer(given["vocab_file"])
    model = modeling.AlbertForMaskedLM(AlbertConfig.from_json_file(given["albert_config_file"]))
    folder = tmp_path / "model"
    if layout != "huggingface":
        folder.mkdir()
        pretrained.save(model, str(folder), is_archive=True)
        shutil.copy(given["vocab_file"], folder)
    else:
        pretrained.save(model, str(folder), tokenizer)
    start = folder / "model.ckpt-best" if layout == "prefix" else folder
    values = flags.parse(run_classifier.define_flags, ["x", f"--init_checkpoint={start}"])
    found = encoder.open_encoder(values, 8)
    assert found.config == model.config
    assert found.tokenizer.vocab == tokenizer.vocab
    name = "bert/embeddings/word_embeddings"
    np.testing.assert_array_equal(found.weights.read(name), modeling.named_weights(model)[name])


# --- Messages before TensorFlow is loaded ---


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

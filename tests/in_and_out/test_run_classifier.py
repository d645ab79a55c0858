"""The command line of run_classifier, as real processes on a tiny model."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers import REPO, cpu_seconds_of_children, run_here

from albert import run_classifier
from albert.cli import encoder, flags
from albert.errors import CheckpointError, FlagError

WORDS = [f"w{i}" for i in range(30)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONFIG = {
    "vocab_size": len(VOCABULARY), "embedding_size": 8, "hidden_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 16, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SIZES = [
    "--max_seq_length=8", "--train_step=6", "--save_checkpoints_steps=3",
    "--train_batch_size=4", "--eval_batch_size=5", "--predict_batch_size=5",
]


def run(*arguments):
    """Returns the finished process of the command."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "albert.run_classifier", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def write_task_files(folder):
    """SST-2 whose label says whether the first word is an even one; STS-B and AX beside it."""
    rng = np.random.default_rng(1)

    def texts(count):
        return [" ".join(rng.choice(WORDS, 4)) for _ in range(count)]

    def write(path, header, rows):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in [header, *rows]))

    for split, count in (("train", 14), ("dev", 12)):
        rows = [f"{text}\t{1 - int(text.split()[0][1:]) % 2}" for text in texts(count)]
        write(folder / "SST-2" / f"{split}.tsv", "sentence\tlabel", rows)
        rows = ["x\t" * 7 + f"{a}\t{b}\t{i % 6}" for i, (a, b) in
                enumerate(zip(texts(count), texts(count), strict=True))]
        write(folder / "STS-B" / f"{split}.tsv", "h\t" * 9 + "score", rows)
    write(folder / "SST-2" / "test.tsv", "index\tsentence",
          [f"{i + 100}\t{text}" for i, text in enumerate(texts(11))])
    return folder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Flags that name a data folder, a config and a vocabulary."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_task_files(folder / "glue")
    return [
        f"--data_dir={folder}/glue", f"--albert_config_file={folder}/config.json",
        f"--vocab_file={folder}/vocab.txt", *SIZES,
    ]


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    """(process, output_dir) of a run that trained, evaluated, predicted and exported."""
    output = tmp_path_factory.mktemp("run") / "out"
    done = run(
        *inputs, "--task_name=SST-2", f"--output_dir={output}", "--do_train", "--do_eval",
        "--do_predict", f"--export_dir={output}/export", "--threshold_to_export=0.25",
    )
    assert done.returncode == 0, done.stderr
    return done, output


def read_results(output):
    lines = (output / "eval_results.txt").read_text().splitlines()
    return dict(line.split(" = ") for line in lines)


def test_one_command_trains_evaluates_and_writes_the_originals_results(trained):
    done, output = trained
    results = read_results(output)
    assert list(results) == sorted(results)
    assert {"eval_accuracy", "eval_loss", "global_step", "loss"} <= set(results)
    assert 0 <= float(results["eval_accuracy"]) <= 1
    as_json = json.loads((output / "eval_results.json").read_text())
    assert {k: str(v) for k, v in as_json.items()} == results
    assert "***** Eval results *****" in done.stderr
    assert re.search(r"  eval_accuracy = 0\.\d", done.stderr)


def test_a_frozen_encoder_keeps_every_weight_and_its_head_learns(inputs, tmp_path):
    from albert.formats import checkpoints

    start = f"{tmp_path}/start/model.ckpt-1"
    for more in (
        [f"--output_dir={tmp_path}/start", "--train_step=1", "--save_checkpoints_steps=1"],
        [f"--output_dir={tmp_path}/probe", f"--init_checkpoint={start}", "--freeze_encoder",
         "--train_step=4", "--warmup_step=0", "--save_checkpoints_steps=4",
         "--learning_rate=0.01"],
    ):
        assert 0 == run_here(run_classifier, *inputs, "--task_name=SST-2", "--do_train", *more)
    before, after = (
        checkpoints.open_weights(path) for path in (start, f"{tmp_path}/probe/model.ckpt-4")
    )
    for name in before.shapes:
        same = np.array_equal(before.read(name), after.read(name))
        if name.startswith("bert/") and not checkpoints.is_slot(name):
            assert same, name
    assert not np.array_equal(before.read("output_weights"), after.read("output_weights"))


def test_padding_rows_never_count(trained):
    # 12 rows in batches of 5: an accuracy over 15 would not be a twelfth.
    _, output = trained
    twelfths = float(read_results(output)["eval_accuracy"]) * 12
    assert twelfths == pytest.approx(round(twelfths), abs=1e-4)


def test_predictions_have_a_line_for_each_row_of_the_test_file(trained):
    _, output = trained
    lines = (output / "test_results.tsv").read_text().splitlines()
    values = np.array([[float(x) for x in line.split("\t")] for line in lines])
    assert values.shape == (11, 2)
    np.testing.assert_allclose(values.sum(axis=1), 1, atol=1e-5)
    submit = [line.split("\t") for line in (output / "submit_results.tsv").read_text().splitlines()]
    assert submit[0] == ["index", "prediction"]
    assert [int(index) for index, _ in submit[1:]] == list(range(100, 111))
    assert [int(label) for _, label in submit[1:]] == values.argmax(axis=1).tolist()


def test_the_export_gives_the_predictions_from_serialized_examples(trained):
    tf = pytest.importorskip("tensorflow")
    _, output = trained
    serve = tf.saved_model.load(str(output / "export")).signatures["serving_default"]
    (records,) = (output.parent / ".out.work").glob("sst-2_test-*.tf_record")
    served = serve(examples=tf.constant([r.numpy() for r in tf.data.TFRecordDataset(str(records))]))
    lines = (output / "test_results.tsv").read_text().splitlines()
    want = np.array([[float(x) for x in line.split("\t")] for line in lines])
    np.testing.assert_allclose(served["probabilities"], want, atol=1e-5)
    assert served["predictions"].numpy().tolist() == want.argmax(axis=1).tolist()
    assert served["threshold"].numpy() == np.float32(0.25)


def test_the_same_command_again_trains_nothing_and_repeats_the_results(inputs, trained):
    _, output = trained
    before = read_results(output)
    again = run(*inputs, "--task_name=sst-2", f"--output_dir={output}", "--do_train", "--do_eval")
    assert again.returncode == 0, again.stderr
    assert "already trained to step 6" in again.stderr
    assert "features from" in again.stderr
    assert read_results(output).keys() == before.keys()
    assert float(read_results(output)["eval_loss"]) == pytest.approx(float(before["eval_loss"]))


def test_a_named_checkpoint_predicts_into_another_directory(inputs, trained, tmp_path):
    _, output = trained
    done = run(
        *inputs, "--task_name=sst-2", f"--output_dir={tmp_path}/p", "--do_predict",
        f"--checkpoint={output}",
    )
    assert done.returncode == 0, done.stderr
    theirs, ours = output / "test_results.tsv", tmp_path / "p" / "test_results.tsv"
    assert ours.read_text() == theirs.read_text()


def test_a_regression_reports_its_correlations(inputs, tmp_path):
    done = run(*inputs, "--task_name=sts-b", f"--output_dir={tmp_path}", "--do_train", "--do_eval",
               f"--cached_dir={tmp_path}/cache")
    assert done.returncode == 0, done.stderr
    assert {"pearson", "spearman", "MSE", "eval_loss"} <= set(read_results(tmp_path))
    assert len(list((tmp_path / "cache").glob("sts-b_*.tf_record"))) == 2


def test_every_file_of_an_output_directory_is_told(trained):
    _, output = trained
    told = (REPO / "docs/reference/file_formats.md").read_text(encoding="utf-8")
    patterns = [
        re.escape(name).replace("<step>", r"(\d+|best)").replace(r"\*", ".*")
        .replace("<task>", r"[\w-]+").replace("<split>", r"\w+").replace("<key>", r"\w+")
        for name in re.findall(r"`([\w.*<>-]+)`", told)
    ]
    files = [path for path in output.iterdir() if path.is_file()]
    names = [path.name for path in files]
    names += [path.name.removesuffix(".manifest.json")
              for path in (output.parent / ".out.work").iterdir()]
    assert len(names) > 12
    for name in names:
        assert any(re.fullmatch(pattern, name) for pattern in patterns), name


def test_an_output_dir_of_another_architecture_is_refused(inputs, trained, tmp_path):
    _, output = trained
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG | {"hidden_size": 32}))
    done = run(*inputs, "--task_name=sst-2", f"--output_dir={output}", "--do_train",
               f"--albert_config_file={config}")
    assert done.returncode == 2
    assert "hidden_size: checkpoint 16, config 32" in done.stderr.splitlines()[-1]


def test_prediction_without_any_checkpoint_says_what_to_do(inputs, tmp_path):
    done = run(*inputs, "--task_name=sst-2", f"--output_dir={tmp_path}", "--do_predict")
    assert done.returncode == 2
    assert "train first (--do_train) or give --checkpoint" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_hub_module_fine_tunes_as_the_checkpoint_it_was_made_of(inputs, golden_path, tmp_path):
    pytest.importorskip("tensorflow")
    from albert import export_to_tfhub

    source = golden_path("tf1_ckpt_tiny")
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join([*VOCABULARY, *(f"x{i}" for i in range(965))]) + "\n")
    export = [f"--albert_directory={source}", f"--vocab_file={vocabulary}",
              f"--export_path={tmp_path}/hub"]
    export_to_tfhub.main(flags.parse(export_to_tfhub.define_flags, ["export", *export]))
    origins = {
        "checkpoint": [f"--init_checkpoint={source}", f"--vocab_file={vocabulary}",
                       f"--albert_config_file={source}/albert_config.json"],
        # The original's tutorial gives this in the place of a real file.
        "module": [f"--albert_hub_module_handle={tmp_path}/hub", "--vocab_file=",
                   "--spm_model_file=from_tf_hub"],
        # Made of the same checkpoint by the original, so in TensorFlow 1's format.
        "module of the original": [f"--albert_hub_module_handle={tmp_path}/tf1"],
    }
    shutil.copytree(golden_path("hub_tf1/module"), tmp_path / "tf1",
                    ignore=shutil.ignore_patterns("*.vocab"))
    shutil.copy(vocabulary, tmp_path / "tf1/assets")
    losses = []
    for name, arguments in origins.items():
        in_process(*inputs, *arguments, "--task_name=sst-2", f"--output_dir={tmp_path}/{name}",
                   "--do_train", "--log_steps=1")
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert len(losses[0]) == 6
    for other in losses[1:]:
        np.testing.assert_allclose(other, losses[0], atol=1e-4)
    # Prediction alone takes the fine-tuned weights, and what describes the encoder from the module.
    in_process(*inputs, *origins["module"], "--task_name=sst-2", f"--output_dir={tmp_path}/module",
               "--do_predict")
    in_process(*inputs, *origins["checkpoint"], "--task_name=sst-2", f"--output_dir={tmp_path}/p",
               "--do_predict", f"--checkpoint={tmp_path}/module")
    results = [(tmp_path / name / "test_results.tsv").read_text() for name in ("module", "p")]
    assert results[0] == results[1]
    # The module itself has no classifier.
    with pytest.raises(CheckpointError, match="has no output_weights, output_bias"):
        in_process(*inputs, *origins["module"], "--task_name=sst-2", f"--output_dir={tmp_path}/q",
                   "--do_predict")


# --- What is refused before TensorFlow is loaded ---


def in_process(*arguments):
    values = flags.parse(run_classifier.define_flags, ["run_classifier", *map(str, arguments)])
    run_classifier.main(values)


@pytest.mark.parametrize("arguments", [["--help"], ["--learning_rat=1"], ["--task_name=mnli"]])
def test_help_and_usage_errors_answer_at_once_without_tensorflow(arguments):
    code = (
        "import sys; from albert import run_classifier\n"
        "try: run_classifier.cli(['run_classifier', *sys.argv[1:]])\n"
        "finally: assert 'tensorflow' not in sys.modules\n"
    )
    before = cpu_seconds_of_children()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True
    )
    assert cpu_seconds_of_children() - before < 2
    assert "AssertionError" not in done.stderr
    if arguments == ["--help"]:
        assert done.returncode == 0 and "--threshold_to_export" in done.stdout
    else:
        assert done.returncode == 2 and done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task_name=imdb"], "--task_name=imdb is not one of ax, cola, mismnli"),
        ([], "--task_name is required"),
        (["--task_name=cola"], "at least one of --do_train, --do_eval, --do_predict"),
        (["--task_name=sst-2", "--do_eval", "--max_seq_length=17"],
         "--max_seq_length=17 exceeds max_position_embeddings 16"),
        (["--task_name=sst-2", "--do_train", "--warmup_step=7"], "--warmup_step=7 exceeds"),
        (["--task_name=sst-2", "--do_train", "--learning_rate=0"],
         "--learning_rate=0: must be a number, above 0"),
        (["--task_name=sst-2", "--do_train", "--checkpoint=x"], "did you mean --init_checkpoint"),
        (["--task_name=mrpc", "--do_train", "--notsv_header"],
         "--notsv_header: goes with --train_file only"),
        (["--task_name=sst-2", "--do_train", "--threshold_to_export=0.5"],
         "--threshold_to_export goes with --export_dir"),
        (["--task_name=sst-2", "--do_train", "--pack_rows", "--pad_to_max_seq_length"],
         "--pack_rows has no effect with --pad_to_max_seq_length"),
        (["--task_name=ax", "--do_eval"], "task ax has no dev file"),
        (["--task_name=sst-2", "--do_eval", "--albert_config_file="], "--albert_config_file or"),
        (["--task_name=sst-2", "--do_eval", "--vocab_file="], "--spm_model_file is required"),
    ],
)
def test_flags_that_cannot_work_are_refused_with_the_remedy(inputs, tmp_path, arguments, message):
    with pytest.raises(FlagError, match=message):
        in_process(*inputs, f"--output_dir={tmp_path}/out", *arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments, expected", [
    (["--albert_hub_module_handle=m", "--albert_config_file=c", "--spm_model_file=from_tf_hub"],
     "--albert_config_file: no effect beside --albert_hub_module_handle"),
    (["--albert_config_file=c", "--spm_model_file=s", "--vocab_file=v"],
     "--vocab_file: no effect beside --spm_model_file"),
    (["--albert_config_file=c", "--spm_model_file=s", "--vocab_file="], ""),
])
def test_flags_of_the_original_that_count_for_nothing_are_named(arguments, expected, caplog):
    values = flags.parse(run_classifier.define_flags, ["x", *arguments])
    encoder.check_encoder_flags(values)
    assert caplog.text.count("no effect") == bool(expected) and expected in caplog.text


def test_bad_data_is_one_line_with_file_and_line_and_leaves_nothing(inputs, tmp_path):
    folder = write_task_files(tmp_path / "glue")
    with open(folder / "SST-2" / "dev.tsv", "a", encoding="utf-8") as stream:
        stream.write("w1 w2\tpositive\n")
    done = run(*inputs, f"--data_dir={folder}", "--task_name=sst-2", "--do_eval",
               f"--output_dir={tmp_path}/out")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"error: {folder}/SST-2/dev.tsv:14: label 'positive' is not one of 0, 1"
    )
    assert list((tmp_path / "out").glob("*")) == []


def test_a_vocabulary_of_another_model_is_refused(inputs, tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(VOCABULARY[:-3]) + "\n")
    done = run(*inputs, f"--vocab_file={vocabulary}", "--task_name=sst-2", "--do_eval",
               f"--output_dir={tmp_path}/out")
    assert done.returncode == 2
    assert "vocab file has 32 tokens, config vocab_size is 35" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", ["ours", "huggingface"]
)
def test_a_models_directory_is_enough_to_start_from(layout, tmp_path):
    from albert import modeling, tokenization
    from albert.config import AlbertConfig
    from albert.formats import pretrained

    glue = write_task_files(tmp_path / "glue")
    model = modeling.AlbertForMaskedLM(AlbertConfig(**CONFIG))
    folder = tmp_path / "model"
    folder.mkdir()
    pretrained.write_archive(str(folder), model)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    if layout == "huggingface":
        tokenizer = tokenization.FullTokenizer(str(folder / "vocab.txt"))
        folder = tmp_path / "theirs"
        pretrained.save(model, str(folder), tokenizer)
    shared_flags = [f"--data_dir={glue}", "--task_name=sst-2", *SIZES, "--do_train", "--do_eval"]
    in_process(*shared_flags, f"--init_checkpoint={folder}", f"--output_dir={tmp_path / 'a'}")
    # The same as with everything spelt out.
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    in_process(
        *shared_flags, f"--init_checkpoint={tmp_path / 'model/model.ckpt-best'}",
        f"--albert_config_file={tmp_path / 'config.json'}",
        f"--vocab_file={tmp_path / 'model/vocab.txt'}", f"--output_dir={tmp_path / 'b'}",
    )
    first, second = (
        json.loads((tmp_path / name / "eval_results.json").read_text()) for name in ("a", "b")
    )
    assert first == second


def test_a_directory_without_vocabulary_says_what_is_missing(tmp_path):
    from albert import modeling
    from albert.config import AlbertConfig

    glue = write_task_files(tmp_path / "glue")
    modeling.AlbertModel(AlbertConfig(**CONFIG)).save_pretrained(str(tmp_path / "model"))
    with pytest.raises(FlagError, match="has no vocabulary: give --spm_model_file"):
        in_process(
            f"--data_dir={glue}", "--task_name=sst-2", *SIZES, "--do_train",
            f"--init_checkpoint={tmp_path / 'model'}", f"--output_dir={tmp_path / 'out'}",
        )

"""What does not fit together is refused in one line before anything is computed or written."""

import json
import subprocess
import sys

import numpy as np
import pytest
from helpers import (
    REPO,
    SIZES,
    assert_one_clear_line,
    metrics,
    write_config,
    write_pretraining_records,
)
from invariants import assert_tidy, nothing_lost, snapshot

from albert import convert_hf
from albert.cli import flags
from albert.formats import checkpoint_files, checkpoints, pretrained, run_states
import jobs


def test_a_run_that_is_done_is_evaluated_again_and_otherwise_left_alone(finished, capsys):
    out, arguments = finished.out, finished.flags
    (out / "eval_results.txt").unlink()
    lines = (out / "metrics.jsonl").read_bytes()
    with nothing_lost(out):
        assert jobs.pretrain(*arguments, "--do_eval") == 0
    assert "already trained to step 23" in capsys.readouterr().err
    assert (out / "eval_results.txt").exists()
    assert (out / "metrics.jsonl").read_bytes() == lines


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 32, "intermediate_size": 48},
         "another architecture (hidden_size: checkpoint 16, config 32; "),
        # Its records say so first.
        ({"vocab_size": 50}, "vocabulary of 40 tokens"),
        ({"num_hidden_groups": 2}, "num_hidden_groups: checkpoint 1, config 2"),
    ],
)
def test_a_directory_of_another_architecture_is_refused_key_by_key(
    change, message, finished, tmp_path, capsys
):
    out, arguments = finished.out, finished.flags
    before = snapshot(out)
    other = f"--albert_config_file={write_config(tmp_path, **change)}"
    assert jobs.pretrain(*arguments, other, "--num_train_steps=30") == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert message in line
    after = snapshot(out)
    assert {k: v for k, v in after.items() if not k.endswith(".lock")} == {
        k: v for k, v in before.items() if not k.endswith(".lock")
    }


def test_a_directory_of_another_task_is_refused(finished, tmp_path, capsys):
    out = finished.out
    arguments = jobs.classifier_flags(tmp_path, output_dir=out)
    with nothing_lost(tmp_path):
        assert jobs.classify(*arguments, "--do_train", f"--cached_dir={tmp_path / 'c'}") == 2
    assert "is of task pretraining, not sst-2" in assert_one_clear_line(capsys.readouterr().err)


def test_each_changed_flag_is_told_once_and_its_new_value_used(finished, capsys):
    out, arguments = finished.out, finished.flags
    changed = ["--num_train_steps=25", "--train_batch_size=8", "--learning_rate=0.5"]
    assert jobs.pretrain(*arguments, *changed) == 0
    said = capsys.readouterr().err
    for text in ("--train_batch_size changed from 4 to 8", "--learning_rate changed from 0.01"):
        assert said.count(text) == 1
    last = metrics(out)[-1]
    assert last["step"] == 25 and last["learning_rate"] > 0.01
    # 23 steps of 4 records, then 2 of 8.
    assert run_states.read_run_state(str(out / "model.ckpt-25"))["records_seen"] == 108


# --- Where the weights come from ---


def as_module(folder, out):
    """Exports the run as a TF-Hub module and returns its directory."""
    assert jobs.export_hub(
        f"--albert_directory={out}", f"--vocab_file={jobs.write_vocabulary(folder)}",
        f"--export_path={folder / 'module'}",
    ) == 0
    return folder / "module"


def as_theirs(folder, out):
    """Converts the run to Hugging Face's layout and returns its directory."""
    assert jobs.command(
        convert_hf, f"--albert_directory={out}",
        f"--vocab_file={jobs.write_vocabulary(folder)}", f"--output_dir={folder / 'theirs'}",
    ) == 0
    return folder / "theirs"


def test_weights_are_taken_from_a_prefix_a_file_a_directory_and_every_layout(
    finished, tmp_path, capsys
):
    out, arguments = finished.out, finished.flags
    best = out / "model.ckpt-best"
    sources = [best, f"{best}.index", out, as_module(tmp_path, out), as_theirs(tmp_path, out)]
    right = pretrained.open_any_weights(str(best))
    for source in map(str, sources):
        weights = pretrained.open_any_weights(source)
        names = [name for name in right.shapes if not checkpoints.is_slot(name)]
        for name in names:
            np.testing.assert_array_equal(weights.read(name), right.read(name), err_msg=name)
    results = []
    for number, source in enumerate([best, sources[-1]]):
        target = f"--output_dir={tmp_path / str(number)}"
        evaluation = ("--nodo_train", "--do_eval", f"--init_checkpoint={source}")
        assert jobs.pretrain(*arguments, target, *evaluation) == 0, source
        results.append(json.loads((tmp_path / str(number) / "eval_results.json").read_text()))
    assert results[1]["loss"] == pytest.approx(results[0]["loss"], rel=1e-6)
    capsys.readouterr()
    assert jobs.pretrain(
        *arguments, f"--output_dir={tmp_path / 'x'}", f"--init_checkpoint={out}/model.ckpt-11"
    ) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "--init_checkpoint: no checkpoint at" in line and "model.ckpt-10" in line
    assert not (tmp_path / "x").exists()


def test_a_warm_start_accounts_for_every_variable_in_log_and_file(finished, tmp_path, capsys):
    out = finished.out
    (tmp_path / "c").mkdir()
    arguments = jobs.classifier_flags(tmp_path / "c")
    assert jobs.classify(*arguments, "--do_train", f"--init_checkpoint={out}") == 0
    said = capsys.readouterr().err
    account = json.loads((tmp_path / "c/out/warm_start.json").read_text())
    loaded, new, ignored = (account[key] for key in ("loaded", "new", "ignored"))
    assert f"loaded {len(loaded)}, new 2 (output_bias, output_weights), ignored" in said
    assert sorted(new) == ["output_bias", "output_weights"]
    assert all(name.startswith("bert/") for name in loaded)
    everything = set(checkpoints.open_weights(str(out)).shapes)
    assert set(loaded) | set(ignored) == everything and "global_step" in ignored


def test_an_encoder_variable_that_is_absent_or_of_another_shape_ends_the_run(
    finished, tmp_path, capsys
):
    out, arguments = finished.out, finished.flags
    weights = checkpoints.open_weights(str(out))
    tensors = {n: weights.read(n) for n in weights.shapes if not checkpoints.is_slot(n)}
    lost = "bert/pooler/dense/bias"
    checkpoint_files.write(
        str(tmp_path / "absent"), {n: t for n, t in tensors.items() if n != lost}
    )
    checkpoint_files.write(str(tmp_path / "other"), tensors | {lost: tensors[lost][:5]})
    start = [*arguments, f"--output_dir={tmp_path / 'new'}"]
    absent, other = (f"--init_checkpoint={tmp_path / name}" for name in ("absent", "other"))
    assert jobs.pretrain(*start, absent) == 2
    assert f"{lost} [16]: not in the" in assert_one_clear_line(capsys.readouterr().err)
    for extra in ([], ["--allow_partial_init"]):
        assert jobs.pretrain(*start, other, *extra) == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        assert f"{lost}: checkpoint [5], model [16]" in line
    assert not list((tmp_path / "new").glob("model.ckpt*"))
    assert jobs.pretrain(*start, absent, "--allow_partial_init") == 0
    assert f"left at random values, absent from {tmp_path}/absent: {lost}" in (
        capsys.readouterr().err)


# --- Vocabulary and configuration ---


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\nw1\n", "[MASK]"),
        ("[PAD]\n[CLS]\n[SEP]\n[MASK]\nw1\n", "[UNK]"),
        ("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n", "it must have id 0"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nw1\n", "vocab_size"),
    ],
)
def test_a_vocabulary_that_is_not_the_models_is_refused_before_any_compute(
    content, message, tmp_path, capsys
):
    arguments = jobs.classifier_flags(tmp_path)
    (tmp_path / "vocab.txt").write_text(content)
    with nothing_lost(tmp_path):
        assert jobs.classify(*arguments, "--do_train") == 2
    assert message in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_of_another_model_is_refused_by_export_and_conversion(
    finished, tmp_path, capsys
):
    jobs.write_vocabulary(tmp_path)
    (tmp_path / "small.txt").write_text("\n".join([*jobs.SPECIALS, "w1"]) + "\n")
    common = [f"--albert_directory={finished.out}", f"--vocab_file={tmp_path / 'small.txt'}"]
    with nothing_lost(tmp_path):
        assert jobs.export_hub(*common, f"--export_path={tmp_path / 'module'}") == 2
        assert "vocab_size" in assert_one_clear_line(capsys.readouterr().err)
        assert jobs.command(convert_hf, *common, f"--output_dir={tmp_path / 'theirs'}") == 2
        assert "vocab_size" in assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "module").exists() and not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("pieces", [30, 2000])
@pytest.mark.parametrize("flag", ["input_file", "eval_input_file"])
def test_records_of_another_vocabulary_are_refused_before_any_compute(
    pieces, flag, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(flags, "import_tensorflow", lambda: pytest.fail("TensorFlow is imported"))
    arguments = jobs.pretraining_flags(tmp_path)
    (tmp_path / "train.tfrecord.manifest.json").unlink()  # which then says nothing
    other = write_pretraining_records(tmp_path / "other.tfrecord")
    config = write_config(tmp_path, vocab_size=pieces)
    changed = [f"--albert_config_file={config}", f"--{flag}={other}", "--do_eval"]
    with nothing_lost(tmp_path):
        assert jobs.pretrain(*arguments, *changed) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert "other.tfrecord was made with a vocabulary of 40 tokens" in line
    assert f"vocab_size is {pieces:,}: make the records with the model's vocabulary" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", ["empty", "cut", "of another size"])
def test_a_sentencepiece_model_that_is_not_the_models_is_refused_before_any_compute(
    damage, tmp_path, capsys
):
    from albert.text import vocabulary

    arguments = jobs.classifier_flags(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"w{i} abc w{i % 7}, hello world" for i in range(300)))
    settings = vocabulary.Settings(vocab_size=50, character_coverage=1.0)
    content = vocabulary.train([str(text)], settings)
    size = {"empty": 0, "cut": len(content) // 2, "of another size": len(content)}[damage]
    (tmp_path / "spm.model").write_bytes(content[:size])
    with nothing_lost(tmp_path):
        assert jobs.classify(
            *arguments, "--do_train", "--vocab_file=", f"--spm_model_file={tmp_path}/spm.model"
        ) == 2
    line = assert_one_clear_line(capsys.readouterr().err)
    assert {"of another size": "50 tokens"}.get(damage, "spm.model") in line
    assert not (tmp_path / "out").exists()


def test_every_problem_of_a_configuration_is_in_one_message_within_seconds(tmp_path):
    values = {k: v for k, v in SIZES.items() if k != "num_hidden_layers"} | {
        "num_hidden_layer": 2, "hidden_size": "16", "num_attention_heads": 0,
        "hidden_dropout_prob": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    done = subprocess.run(
        [sys.executable, "-m", jobs.PRETRAINING, f"--albert_config_file={tmp_path}/config.json",
         f"--input_file={tmp_path}/config.json", f"--output_dir={tmp_path / 'out'}"],
        capture_output=True, text=True, cwd=REPO, timeout=30,
    )
    line = assert_one_clear_line(done.stderr)
    assert done.returncode == 2 and "tensorflow" not in done.stderr.lower()
    for part in ("did you mean 'num_hidden_layers'", "hidden_size must be an integer, got '16'",
                 "num_attention_heads must be at least 1", "hidden_dropout_prob"):
        assert part in line


# --- Texts ---


def test_odd_but_good_tables_give_the_right_rows(tmp_path):
    from albert.tasks import glue

    long = "w1 " * 100_000
    rows = [
        '"w1 never closed\t1', "a\u2028b\x0bc\x85d\t0", "nul\0l\t1", f"{long}\t0", "\t1",
        "crlf\t0\r",
    ]
    (tmp_path / "SST-2").mkdir()
    path = tmp_path / "SST-2/train.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + ("text\tlabel\r\n" + "\n".join(rows) + "\n").encode())
    found = glue.read_examples(glue.TASKS["sst-2"], str(tmp_path), "train")
    assert [(e.text_a, e.label) for e in found] == [
        tuple(row.rstrip("\r").split("\t")) for row in rows
    ]


def test_a_text_of_nothing_is_the_two_marks(tmp_path):
    from albert.records import features
    from albert.tokenization import FullTokenizer

    tokenizer = FullTokenizer(jobs.write_vocabulary(tmp_path), True)
    for text in ("", "   ", "\u200b\x00", "\ud800"):
        [row] = features.encode_texts(tokenizer, [(text, None)], 8)
        used = row.input_ids[: int(row.input_mask.sum())].tolist()
        unknown = tokenizer.vocab["[UNK]"]
        assert [i for i in used if i != unknown] == [tokenizer.cls_id, tokenizer.sep_id]


def test_texts_of_any_bytes_train_to_the_end(tmp_path, capsys):
    arguments = jobs.data_flags(tmp_path)
    odd = [b"\xff\xfe w1 w2", "a\ud800b".encode("utf-8", "surrogatepass"), b"\3\1\2 w3", b"\x85 w4",
           "\u2028w5".encode(), b"   ", b"w6 " * 500]
    with open(tmp_path / "corpus.txt", "ab") as stream:
        stream.write(b"\n" + b"\n".join(odd) + b"\n")
    assert jobs.create_data(*arguments) == 0
    assert "3 of 217 lines had invalid UTF-8" in capsys.readouterr().err
    job = jobs.pretraining_flags(tmp_path, num_train_steps=4)
    assert jobs.pretrain(*job, f"--input_file={tmp_path}/out.tfrecord") == 0


@pytest.mark.parametrize("text", ["", "\n\n \n", "\ufeff\n"])
def test_a_text_without_documents_publishes_nothing(text, tmp_path, capsys):
    arguments = jobs.data_flags(tmp_path)
    (tmp_path / "corpus.txt").write_text(text)
    with nothing_lost(tmp_path):
        assert jobs.create_data(*arguments) == 2
    assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out.tfrecord").exists()


@pytest.mark.parametrize(
    ("kind", "size", "most"),
    [("sentences", 2 << 20, 48 << 20),
     pytest.param("sentences", 30 << 20, 640 << 20, marks=pytest.mark.slow),
     ("one sentence", 300_000, 16 << 20),
     pytest.param("corpus", 200 << 20, 256 << 20, marks=pytest.mark.slow)],
)
def test_huge_texts_take_little_more_memory_than_tiny_ones(kind, size, most, tmp_path):
    arguments = [*jobs.data_flags(tmp_path, dupe_factor=1)]
    tiny = jobs.peak_of_data_creation(*arguments)
    sentence = " ".join(jobs.WORDS[:10])
    # All of it one document; and one line; and documents of 20 sentences.
    parts = {"sentences": f"{sentence}\n", "one sentence": f"{sentence} ",
             "corpus": f"{sentence}\n" * 20 + "\n"}
    with open(tmp_path / "corpus.txt", "a") as stream:
        stream.write("\n")
        for _ in range(size // len(parts[kind])):
            stream.write(parts[kind])
        stream.write("\n")
    assert jobs.peak_of_data_creation(*arguments) < tiny + most
    assert (tmp_path / "out.tfrecord").exists()
    assert_tidy(tmp_path)

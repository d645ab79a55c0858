"""A student learns the hidden states of a teacher."""

import dataclasses
import json

import jobs
import keras
import numpy as np
import pytest
from helpers import (
    NEEDS_JAX, SIZES, assert_one_clear_line, metrics, run, train_pieces, write_config,
)
from making_records import masked_pairs

import albert
from albert.formats import checkpoints, pretrained
from albert.pretraining_data.dynamic_masking import DynamicMasking
from albert.pretraining_data.features import masked_features
from albert.pretraining_data.masking import MaskingSettings, SpecialIds
from albert.records.record_files import RecordFiles
from albert.tasks import teacher as teachers
from albert.tasks.pretraining import PretrainingTask
from albert.text import vocabulary
from albert.training.metrics import History

TEACHER = {"num_hidden_layers": 4, "num_hidden_groups": 4, "embedding_size": 16, "initializer_range": 0.3}


def save_teacher(folder, **changes) -> str:
    """Saves an encoder whose layers and vocabulary all count; returns the flag that names it."""
    keras.utils.set_random_seed(1)
    config = albert.AlbertConfig(**SIZES | TEACHER | changes)
    albert.AlbertModel(config).save_pretrained(folder / "teacher")
    jobs.write_vocabulary(folder / "teacher")
    return f"--teacher={folder / 'teacher'}"


def write_records(folder) -> str:
    """Makes records without masks of the teacher's vocabulary; returns their path."""
    path = folder / "whole.tfrecord"
    if not path.exists():
        flags = jobs.data_flags(folder, output_file=path, dupe_factor=1)
        flags = [flag for flag in flags if "max_predictions" not in flag]
        assert jobs.create_data(*flags, "--nostatic_masks") == 0
    return str(path)


def taught(folder, **changes) -> list[str]:
    """Returns the flags of a pretraining run with a teacher; its student has its sizes."""
    flags = jobs.pretraining_flags(folder, input_file=write_records(folder), **changes)
    write_config(folder, **TEACHER)
    flags = [flag for flag in flags if "max_predictions" not in flag]
    return [*flags, save_teacher(folder), "--masked_lm_budget=0.25", "--do_eval"]


def opened(folder, tokens=(*jobs.SPECIALS, *jobs.WORDS)):
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    source = pretrained.open_path(str(folder / "teacher"))
    return teachers.Teacher(source, albert.tokenization.FullTokenizer(str(folder / "vocab.txt")), "float32")


def batch_of(num_masked: int) -> dict[str, np.ndarray]:
    """Returns 5 examples of 6 to 10 tokens with the same masks in all, and their ids before."""
    rng, length = np.random.default_rng(2), 10
    lengths = np.arange(6, 11)
    ids = rng.integers(5, 40, (5, length)) * (np.arange(length) < lengths[:, None])
    batch = {name: np.zeros((5, size), kind) for name, (kind, size) in masked_features(length, 3).items()}
    batch |= {"input_ids": ids.copy(), "input_mask": (ids > 0).astype(np.int64),
              "is_real_example": np.ones(5, np.int64)}
    for slot in range(num_masked):
        batch["masked_lm_positions"][:, slot] = 2 + slot
        batch["masked_lm_ids"][:, slot] = ids[:, 2 + slot]
        batch["masked_lm_weights"][:, slot] = 1
        batch["input_ids"][:, 2 + slot] = 4
    return batch | {"before": ids}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a teacher and records, which nobody changes."""
    folder = tmp_path_factory.mktemp("teacher")
    save_teacher(folder)
    write_records(folder)
    return folder


@pytest.fixture(scope="module")
def teacher(folder):
    return opened(folder)


@pytest.mark.parametrize("num_masked", [0, 3])
def test_the_teacher_reads_the_text_without_masks_and_an_error_of_one_is_that_of_the_mean(
    num_masked, teacher
):
    batch = batch_of(num_masked)
    plain = {"input_ids": batch["before"], "input_mask": batch["input_mask"]}
    states = np.asarray(teacher.model(plain)["sequence_output"])
    found = teacher.compare(batch, states)
    assert np.abs(np.asarray(found["state_errors"]) * batch["input_mask"]).max() < 1e-10
    np.testing.assert_allclose(found["similarity"], 1, atol=1e-6)
    other = teacher.compare(batch, np.roll(states, 1, axis=0))
    assert np.asarray(other["state_errors"]).max() > 0.1
    assert np.asarray(other["similarity"]).max() < 0.999
    means = np.broadcast_to(states.mean(-1, keepdims=True), states.shape)
    np.testing.assert_allclose(teacher.compare(batch, means)["state_errors"], 1, rtol=1e-5)


def test_a_student_may_have_a_part_of_the_vocabulary_in_another_order(folder):
    teacher = opened(folder, [*jobs.SPECIALS, *jobs.WORDS[30:10:-1]])
    tokens = dict(zip([*jobs.SPECIALS, *jobs.WORDS], range(40), strict=True))
    assert teacher.rows.tolist() == [tokens[t] for t in (*jobs.SPECIALS, *jobs.WORDS[30:10:-1])]


@pytest.mark.parametrize("kind", ["words", "pieces"])
def test_the_part_of_a_vocabulary_that_a_text_uses_reads_it_the_same(kind, tmp_path):
    text, other = "low lower lowest new newer newest", "wide wider widest"
    if kind == "pieces":
        path = train_pieces(tmp_path / "spm", [f"{text} {other}"] * 9, 40)
        tokenizer = albert.tokenization.FullTokenizer(None, spm_model_file=path)
    else:
        (tmp_path / "words.txt").write_text("\n".join(
            [*jobs.SPECIALS, *"lownerstid", *(f"##{c}" for c in "lownerstid"), *f"{text} {other}".split()]))
        tokenizer = albert.tokenization.FullTokenizer(str(tmp_path / "words.txt"))
    (tmp_path / "corpus.txt").write_text(text + "\n")
    size = vocabulary.write_used(tokenizer, (tmp_path / "corpus.txt").open(), str(tmp_path / "part"))
    files = (f"{tmp_path}/part.txt", None) if kind == "words" else (None, f"{tmp_path}/part.model")
    part = albert.tokenization.FullTokenizer(files[0], spm_model_file=files[1])
    assert len(part.vocab) == size < len(tokenizer.vocab)
    assert part.tokenize(text) == tokenizer.tokenize(text)
    assert "[UNK]" not in part.tokenize(other) and "<unk>" not in part.tokenize(other)
    assert list(part.vocab) == [token for token in tokenizer.vocab if token in part.vocab]


@pytest.mark.parametrize("width, tolerance", [(16, 1e-10), (12, 0.5)])
def test_a_student_begins_as_its_teacher(width, tolerance, folder, teacher):
    records = RecordFiles([write_records(folder)])
    config = dataclasses.replace(teacher.source.config, embedding_size=width).with_dropout(0.5)
    weights = teachers.initial_weights(teacher, config, records)
    task = PretrainingTask(12, 3, teacher=teacher)
    student = task.build_model(config)
    for name, variable in albert.modeling.named_weights(student).items():
        if name in weights.shapes:
            variable.assign(weights.read(name))
    outputs = task.outputs(student, batch_of(0), training=True)  # without the dropout, of fine-tuning only
    error = float((np.asarray(outputs["state_errors"]) * batch_of(0)["input_mask"]).mean())
    assert error < tolerance
    random = task.outputs(task.build_model(config), batch_of(0))
    assert error < 0.5 * float(np.asarray(random["state_errors"]).mean())


def test_groups_begin_as_the_mean_of_the_layers_that_they_replace(folder, teacher):
    records = RecordFiles([write_records(folder)])
    config = dataclasses.replace(teacher.source.config, num_hidden_groups=2)
    weights = teachers.initial_weights(teacher, config, records)
    name = "bert/encoder/transformer/group_{}/inner_group_0/ffn_1/intermediate/dense/kernel"
    theirs = [teacher.source.weights().read(name.format(i)) for i in range(4)]
    for group in (0, 1):
        mean = (theirs[2 * group] + theirs[2 * group + 1]) / 2
        np.testing.assert_allclose(weights.read(name.format(group)), mean, rtol=1e-6)


def test_training_brings_the_states_nearer_and_names_each_loss(tmp_path):
    flags = taught(tmp_path, num_train_steps=60, log_steps=10, save_checkpoints_steps=60,
                   learning_rate=0.003, optimizer="adamw")
    assert jobs.pretrain(*flags) == 0
    lines = [line for line in metrics(tmp_path / "out") if line["kind"] == "train"]
    names = {"state_error", "teacher_similarity", "masked_lm_loss", "sentence_order_loss"}
    assert names <= lines[0].keys()
    assert lines[-1]["state_error"] < 0.8 * lines[0]["state_error"]
    results = json.loads((tmp_path / "out/eval_results.json").read_text())
    assert names <= results.keys()
    assert json.loads((tmp_path / "out/best.json").read_text())["metric"] == "teacher_similarity"


@pytest.mark.slow
@pytest.mark.parametrize("extra", [
    [], ["--gradient_accumulation_steps=2", "--nopack_rows"], ["--mixed_precision=bfloat16"],
])
def test_a_killed_run_with_a_teacher_resumes_to_the_same_bits(extra, tmp_path, monkeypatch):
    flags = [*taught(tmp_path), "--init_from_teacher", *extra]
    assert jobs.pretrain(*flags) == 0
    again = [*flags, f"--output_dir={tmp_path / 'again'}"]
    jobs.sigterm_when(monkeypatch, History, "note", lambda history, before, *_: before + 1 >= 13)
    assert jobs.pretrain(*again) == 143
    assert jobs.pretrain(*again) == 0
    jobs.assert_same_run(tmp_path / "again", tmp_path / "out", 23)


@pytest.mark.slow
def test_accumulation_and_packing_change_nothing(tmp_path):
    """The losses are sums over the whole batch, wherever its parts are computed."""
    flags = taught(tmp_path, num_train_steps=3, num_warmup_steps=1, log_steps=1)
    write_config(tmp_path, **TEACHER, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    found = []
    for number, extra in enumerate((["--pack_rows"], ["--nopack_rows"], ["--gradient_accumulation_steps=2"])):
        out = tmp_path / f"out{number}"
        assert jobs.pretrain(*flags, *extra, f"--output_dir={out}") == 0
        found.append([line["loss"] for line in metrics(out)])
    for losses in found[1:]:
        assert losses == pytest.approx(found[0], rel=1e-5)


@NEEDS_JAX
@pytest.mark.slow
def test_both_engines_learn_the_same(tmp_path):
    """From the same weights: random ones differ between engines."""
    flags = taught(tmp_path, num_train_steps=4, num_warmup_steps=1, log_steps=1)
    write_config(tmp_path, **TEACHER, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    albert.AlbertForPreTraining(albert.AlbertConfig(**SIZES | TEACHER)).save_pretrained(tmp_path / "start")
    found = []
    for engine in ("tensorflow", "jax"):
        out = tmp_path / engine
        done = run(jobs.PRETRAINING, *flags, f"--init_checkpoint={tmp_path / 'start'}", f"--engine={engine}",
                   f"--output_dir={out}")
        assert done.returncode == 0, done.stderr
        names = "loss", "state_error", "teacher_similarity"
        found.append([[line[name] for name in names] for line in metrics(out)])
    np.testing.assert_allclose(*found, rtol=2e-5)


def test_a_student_of_another_width_is_saved_without_its_projection(tmp_path):
    flags = taught(tmp_path, num_train_steps=3, num_warmup_steps=1)
    write_config(tmp_path, hidden_size=24, num_attention_heads=2)
    assert jobs.pretrain(*flags) == 0
    weights = checkpoints.open_weights(str(tmp_path / "out"))
    assert weights.shapes["teacher_projection/kernel"] == (24, 16)
    model = albert.from_pretrained(tmp_path / "out")
    assert type(model) is albert.AlbertForPreTraining
    model.save_pretrained(tmp_path / "saved")
    saved = pretrained.open_path(str(tmp_path / "saved")).weights()
    assert not [name for name in saved.shapes if "teacher" in name]


def test_masks_that_are_drawn_leave_half_of_the_sequences_whole():
    settings, special = MaskingSettings(3, mask_token_share=1), SpecialIds(2, 3, 4, 40)
    masking = DynamicMasking(16, settings, special, 1, whole_prob=0.5)
    ids = np.random.default_rng(0).integers(5, 40, (400, 16)).astype(np.int32)
    ids[:, 0], ids[:, 15] = 2, 3
    masked = masked_pairs(masking, ids, np.full((400, 2), (14, 0), np.int32), np.ones_like(ids),
                          np.zeros((400, 1), np.int32), np.arange(400))
    is_whole = masked["masked_lm_weights"].sum(1) == 0
    assert 160 < is_whole.sum() < 240
    np.testing.assert_array_equal(masked["input_ids"][is_whole], ids[is_whole])
    assert (masked["input_ids"][~is_whole] != ids[~is_whole]).any(1).all()
    assert not masked["masked_lm_positions"][is_whole].any()


def test_a_start_that_does_not_fit_is_one_line(tmp_path, capsys):
    flags = taught(tmp_path)
    masked = [*jobs.pretraining_flags(tmp_path), f"--teacher={tmp_path / 'teacher'}",
              f"--vocab_file={jobs.write_vocabulary(tmp_path)}"]

    def refused(message, *flags):
        assert jobs.pretrain(*flags) == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)

    for change, message in (
        ({"hidden_size": 8, "num_attention_heads": 2}, "hidden_size must be the teacher's (16)"),
        ({"embedding_size": 24}, "embedding_size must be the teacher's (16)"),
    ):
        write_config(tmp_path, **TEACHER | change)
        refused(message, *flags, "--init_from_teacher")
    write_config(tmp_path, **TEACHER | {"max_position_embeddings": 64})
    refused("max_seq_length=40 exceeds max_position_embeddings 16 of", *flags, "--max_seq_length=40")
    refused("--init_from_teacher needs --teacher", *jobs.pretraining_flags(tmp_path), "--init_from_teacher")
    # Their teacher would never see the embedding of a text without masks.
    refused("--nostatic_masks", *masked)
    (tmp_path / "teacher/vocab.txt").write_text("\n".join([*jobs.SPECIALS, *jobs.WORDS[:-1], "zebra"]))
    refused(f"lacks {jobs.WORDS[-1]}", *flags)

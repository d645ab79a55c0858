"""What is given or recorded arrives where it counts, beyond the flags in test_wiring's tables."""

import json
import math
import pathlib
import shutil
import types

import jobs
import keras
import pytest
from helpers import SIZES, run_here, write_text
from making_records import flags_of

import albert
from albert import convert_hf, create_pretraining_data, pretrain_from_text, run_pretraining
from albert.cli import flags, text_plan
from albert.config import AlbertConfig
from albert.errors import DataError, Preempted, UserError
from albert.formats import pretrained
from albert.pretraining_data import pipeline
from albert.text.documents import ReadingCounts, read_documents
from albert.tokenization import FullTokenizer
from albert.training.run import RunConfig, restore

CONFIG = AlbertConfig(**SIZES | {"num_hidden_layers": 1})


# --- Commands of pretrain_from_text ---


def save_model(folder, **changes):
    """A model with the words of the tests, which are not lower-cased."""
    albert.AlbertModel(AlbertConfig(**SIZES | {"num_hidden_layers": 1} | changes)).save_pretrained(folder)
    jobs.write_vocabulary(folder)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    return folder


@pytest.mark.parametrize("kind", ["", "start_from", "teacher"])
def test_each_command_gets_what_was_typed_and_planned(kind, tmp_path, monkeypatch):
    given, run = [], pretrain_from_text._run

    def noted(name, *arguments):
        given.append((name, dict(one[2:].partition("=")[::2] for one in arguments)))
        run(name, *arguments)

    def train(values):
        if not values.until_step:  # the second run
            raise Preempted("stopped by SIGTERM", 15)
        pathlib.Path(values.output_dir).mkdir()
        pathlib.Path(values.output_dir, "metrics.jsonl").write_text(
            '{"kind": "train", "step": 1, "tokens_per_second": 500}\n')

    monkeypatch.setattr(pretrain_from_text, "_run", noted)
    monkeypatch.setattr(run_pretraining, "main", train)
    monkeypatch.setattr(pretrain_from_text.workers, "bfloat16_gain", lambda: 2)
    out, text = tmp_path / "out", str(write_text(tmp_path / "text.txt", 60))
    model = kind and save_model(tmp_path / "model", max_position_embeddings=24)
    typed = [f"--input_file={text}", f"--output_dir={out}", "--hours=0.5", "--seed=7", "--language=de"]
    typed += [f"--{kind}={model}"] if kind else ["--nodo_lower_case", "--keep_accents"]
    assert run_here(pretrain_from_text, *typed) == 143

    plan = json.loads((out / "plan.json").read_text())
    size = text_plan.size_of(plan["size"])
    if kind == "start_from":
        assert size == text_plan.nearest(pretrained.open_path(str(model)).config)
    vocabulary = {
        "": {"spm_model_file": f"{out}/spm.model"}, "start_from": {"vocab_file": f"{model}/vocab.txt"},
        "teacher": {"vocab_file": f"{out}/vocabulary.txt"},
    }[kind]
    form = {"split_sentences": "", "language": "de"}
    without_pairs = {"single_sentences": "", "sentence_objective": "none"}
    pairs = without_pairs if kind == "teacher" else {"full_sequences": ""}
    train_file, held_out = (f"{out}/records/{name}.tfrecord" for name in ("train", "held_out"))
    length = str(min(size.length, 24) if kind else size.length)
    created = {
        "input_file": text, **form, **vocabulary, **pairs, "do_lower_case": "false", "random_seed": "7",
        "output_file": train_file, "eval_output_file": held_out,
        "held_out_fraction": str(text_plan.held_out_fraction(plan["text_bytes"] / text_plan.BYTES_PER_TOKEN)),
        "max_seq_length": length, "nostatic_masks": "",
    }
    new = {"albert_config_file": f"{out}/albert_config.json", **vocabulary, "do_lower_case": "false"}
    start = {"": new | {"init_embeddings": "cooccurrence"}, "start_from": {"init_checkpoint": f"{model}"},
             "teacher": new | {"teacher": f"{model}", "init_from_teacher": ""}}[kind]
    trained = {
        "input_file": train_file, "output_dir": f"{out}/model", "do_train": "", **start,
        "max_seq_length": length, "optimizer": size.optimizer, "mixed_precision": "bfloat16",
        "masked_lm_budget": "0.15", "mask_token_share": "1", "keep_checkpoint_max": "2", "seed": "7",
    }
    if not kind:
        name, flags_of_vocabulary = given.pop(0)
        assert int(flags_of_vocabulary.pop("vocab_size")) >= plan["vocab_size"]
        assert (name, flags_of_vocabulary) == ("train_sentencepiece", {
            "input": text, **form, "model_prefix": f"{out}/spm", "do_lower_case": "false",
            "keep_accents": "true", "nohard_vocab_limit": "", "seed": "7",
        })
    (one, records), (two, measured), (three, training) = given
    assert [one, two, three] == ["create_pretraining_data", "run_pretraining", "run_pretraining"]
    assert records == created
    assert {name: measured[name] for name in trained} == trained and int(measured["until_step"]) > 1
    assert training == trained | {name: str(value) for name, value in plan["training"].items()} | {
        "do_eval": "", "eval_input_file": held_out}
    rate = size.rate * math.sqrt(int(training["train_batch_size"]) / size.batch)
    rate *= 0.4 if kind == "start_from" else 1
    assert float(training["learning_rate"]) == pytest.approx(rate, rel=0.01)
    given.clear()  # The rerun makes, measures and plans nothing again.
    assert run_here(pretrain_from_text, *typed) == 143
    assert given == [("run_pretraining", training)]


# --- What was recorded ---


def test_a_loss_scale_is_taken_from_a_run_in_float16_alone():
    for before, scale in (("float32", 2.0**15), ("float16", 8.0)):
        state = types.SimpleNamespace(
            step=3, assign=lambda _: None, loss_scale=keras.Variable([2.0**15, 0.0]))
        recorded = {"flags": {"mixed_precision": before}, "loss_scale": [8.0, 5.0]}
        restore(state, RunConfig("", mixed_precision="float16"), {}, recorded, {})
        assert state.loss_scale.numpy()[0] == scale


def test_a_long_question_is_cut_where_it_was_cut_in_training(tuned):
    session = albert.open_session(tuned("race").out)  # 6 tokens of a question with an option
    options = [f"w{i}" for i in range(6, 10)]
    short, long = (session.choose([("w1 w2", question, *options)])[0]
                   for question in ("w1 w2 w3 w4 w5", "w20 w21 w22 w1 w2 w3 w4 w5"))
    assert long["probabilities"] == pytest.approx(short["probabilities"])


def test_a_conversion_keeps_a_tokenizers_limit(tmp_path):
    albert.AlbertModel(CONFIG).save_pretrained(tmp_path / "ours")
    tokenizer = FullTokenizer(jobs.write_vocabulary(tmp_path), True)
    albert.AlbertTokenizer(tokenizer, 9).save_pretrained(tmp_path / "ours")
    assert run_here(convert_hf, f"--albert_directory={tmp_path / 'ours'}",
                    f"--output_dir={tmp_path / 'theirs'}") == 0
    assert json.loads((tmp_path / "theirs/tokenizer_config.json").read_text())["model_max_length"] == 9
    for longest, limit in ((None, 16), (9, 9), (99, 16)):
        folder = tmp_path / str(longest)
        folder.mkdir()
        pretrained.save(albert.AlbertModel(CONFIG), str(folder), tokenizer, max_length=longest)
        assert pretrained.open_path(str(folder)).vocabulary.max_length == limit


def test_padding_is_marked_as_special():
    tokenizer = albert.AlbertTokenizer.from_pretrained("small_en")
    texts = [tokenizer(text, return_special_tokens_mask=True) for text in ("one", "one two three four")]
    short, long = tokenizer.pad(texts)["special_tokens_mask"]
    assert list(short) == [1, 0, 1] + [1] * (len(long) - 3)


# --- Before the work ---


def test_a_nul_is_named_by_the_line_of_its_own_file(tmp_path):
    for name, content in (("a", b"w1\nw2\n\nw3\n"), ("b", b"w1\nw\0\n")):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{tmp_path}/b:2: a NUL byte"):
        list(read_documents([str(tmp_path / name) for name in "ab"], str, ReadingCounts()))


def test_a_resumed_job_counts_the_disk_that_its_own_work_has(tiny, monkeypatch):
    values = flags.parse(create_pretraining_data.define_flags, ["x", *flags_of(tiny)])
    job = create_pretraining_data.job_of(values)
    needed = math.ceil(pipeline.needed_disk(job))
    monkeypatch.setattr(pipeline, "_CHECKED_DISK", 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, needed - 1000))
    (tiny / "work").mkdir()
    with pytest.raises(UserError, match="Free some"):
        pipeline._check_disk(job, str(tiny / "work"))
    (tiny / "work/1.part").write_bytes(bytes(1000))
    pipeline._check_disk(job, str(tiny / "work"))

"""Inputs that do not fit together are refused in one line before anything is computed or written."""

import json
import pickle
import re

import jobs
import pytest
from damage import Bomb
from helpers import SIZES, assert_one_clear_line, metrics, results_of, write_pretraining_records
from invariants import assert_tidy, nothing_lost, snapshot

from albert import convert_hf, engines
from albert.formats import checkpoints, metadata
from albert.records import features
from albert.tasks import glue
from albert.text import vocabulary
from albert.tokenization import FullTokenizer

# --- Refusals ---


COMMANDS = {
    "pretrain": (jobs.pretrain, jobs.pretraining_flags),
    "classify": (jobs.classify, lambda d: [*jobs.classifier_flags(d), "--do_train"]),
    "squad": (jobs.squad, jobs.squad_flags),
    "data": (jobs.create_data, jobs.data_flags),
    "export": (jobs.export_hub, lambda d: [f"--export_path={d}/out"]),
    "convert": (lambda *f: jobs.command(convert_hf, *f), lambda d: [f"--output_dir={d}/out"]),
}
VOCABULARIES = {
    "empty": "", "no_mask": "[PAD]\n[UNK]\n[CLS]\n[SEP]\nw1\n",
    "no_unk": "[PAD]\n[CLS]\n[SEP]\n[MASK]\nw1\n", "no_pad": "[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n",
    "small": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nw1\n",
}
TEXTS = {"nothing": "", "blank": "\n\n \n", "mark": "\ufeff\n"}
CONFIGS = {
    "wide": {"hidden_size": 32, "intermediate_size": 48}, "groups": {"num_hidden_groups": 2},
    "few": {"vocab_size": 30}, "many": {"vocab_size": 2000},
    "wrong": {"hidden_size": "16", "num_attention_heads": 0, "hidden_dropout_prob": 1},
}
PICKLES = ("w.pkl", "w.h5", "w.keras", "w.bin", "w.pt", "model.ckpt-1")
# (command, flags added to those of a valid job, message). {d}: the folder of the files above;
# {run}: a finished pretraining run of 23 steps.
REFUSED = [
    ("pretrain", "--output_dir={run} --num_train_steps=30 --albert_config_file={d}/wide.json",
     "another architecture (hidden_size: checkpoint 16, config 32; "),
    ("pretrain", "--output_dir={run} --num_train_steps=30 --albert_config_file={d}/groups.json",
     "num_hidden_groups: checkpoint 1, config 2"),
    ("classify", "--output_dir={run} --cached_dir={d}/out",
     "was trained with another task (pretraining, not sst-2): use another --output_dir"),
    ("classify", "--vocab_file= --init_checkpoint={run}",
     "has no vocabulary: pass --spm_model_file or --vocab_file"),
    ("classify", "--albert_config_file= --init_checkpoint=albert-base-v2",
     "--init_checkpoint: no directory 'albert/albert-base-v2' here"),
    ("classify", "--vocab_file={d}/spm.vocab",
     "spm.vocab only lists the tokens of a SentencePiece model: pass the model itself, *.model, as"),
    ("pretrain", "--init_checkpoint={run}/model.ckpt-11",
     "--init_checkpoint: no checkpoint at .*model.ckpt-10"),
    ("pretrain", "--albert_config_file={d}/wrong.json",
     "wrong.json: bad ALBERT config: hidden_size must be an integer from 1, got '16'.*"
     "num_attention_heads must be an integer from 1.*hidden_dropout_prob must be a number in [0, 1), got 1"),
    ("classify", "--vocab_file={d}/empty.txt", "empty.txt"),
    ("classify", "--vocab_file={d}/no_mask.txt", "[MASK]"),
    ("classify", "--vocab_file={d}/no_unk.txt", "[UNK]"),
    ("classify", "--vocab_file={d}/no_pad.txt", "it must have id 0"),
    ("classify", "--vocab_file={d}/small.txt", "vocab_size"),
    ("export", "--albert_directory={run} --vocab_file={d}/small.txt", "vocab_size"),
    ("convert", "--albert_directory={run} --vocab_file={d}/small.txt", "vocab_size"),
    ("classify", "--vocab_file= --spm_model_file={d}/empty.txt", "empty.txt"),
    ("classify", "--vocab_file= --spm_model_file={d}/cut.model", "cut.model"),
    ("classify", "--vocab_file= --spm_model_file={d}/spm.model", "50 tokens"),
    *(("pretrain", f"--albert_config_file={{d}}/{config}.json --do_eval --{flag}={{d}}/40.tfrecord",
       f"40.tfrecord was made with a vocabulary of 40 tokens.*vocab_size is {pieces}: make the "
       "records with the model's vocabulary")
      for config, pieces in (("few", "30"), ("many", "2,000"))
      for flag in ("input_file", "eval_input_file")),
    *(("data", f"--input_file={{d}}/{name}.text", "") for name in TEXTS),
    ("squad", "--warmup_step=5", "--warmup_step=5 exceeds --train_step=4"),
    # Content that would be executed or lead elsewhere
    *(("pretrain", f"--init_checkpoint={{d}}/{name}", name) for name in PICKLES),
    *(("classify", f"--task_name={name}", name)
      for name in ("../glue", "/etc", "sst-2/../../x", "..")),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that REFUSED names, and {command: flags of a valid job there}."""
    monkeypatch.setenv("OWNED", str(tmp_path / "owned"))
    for name, content in VOCABULARIES.items():
        (tmp_path / f"{name}.txt").write_text(content)
    for name, content in TEXTS.items():
        (tmp_path / f"{name}.text").write_text(content)
    for name, changes in CONFIGS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(SIZES | changes))
    for name in PICKLES:
        (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    (tmp_path / "lines").write_text("\n".join(f"w{i} abc w{i % 7}, hello" for i in range(300)))
    settings = vocabulary.Settings(vocab_size=50, character_coverage=1.0)
    model = vocabulary.train([str(tmp_path / "lines")], settings)
    (tmp_path / "spm.model").write_bytes(model)
    (tmp_path / "spm.vocab").write_text("<unk>\t0\n▁a\t-2.5\n")
    (tmp_path / "cut.model").write_bytes(model[: len(model) // 2])
    write_pretraining_records(tmp_path / "40.tfrecord")
    sound = {name: flags_of(tmp_path) for name, (_, flags_of) in COMMANDS.items()}
    (tmp_path / "train.tfrecord.manifest.json").unlink()  # so its vocabulary is unknown
    return tmp_path, sound


def test_what_does_not_fit_is_one_line_before_anything_is_computed_or_written(
    folder, whole, capsys, monkeypatch
):
    folder, sound = folder
    run = whole.copy(folder / "run").out
    monkeypatch.setattr(engines, "import_tensorflow", lambda: pytest.fail("TensorFlow is imported"))
    before = snapshot(folder)
    for name, more, said in REFUSED:
        given = [flag.format(d=folder, run=run) for flag in more.split()]
        assert COMMANDS[name][0](*sound[name], *given) == 2, more
        line = assert_one_clear_line(capsys.readouterr().err)
        assert re.search(re.escape(said).replace(r"\.\*", ".*"), line), f"{more}: {line}"
        after = {k: v for k, v in snapshot(folder).items() if ".lock" not in k}
        assert after == {k: v for k, v in before.items() if ".lock" not in k}, more
        assert not (folder / "out").exists(), more
    pickle.loads(pickle.dumps(Bomb()))
    assert (folder / "owned").exists()  # any of them would have done this


# --- Resumed runs, and the source of their weights ---


def test_a_run_that_is_done_is_evaluated_again_and_otherwise_left_alone(finished, capsys):
    out, arguments = finished.out, finished.flags
    (out / "eval_results.txt").unlink()
    lines = (out / "metrics.jsonl").read_bytes()
    with nothing_lost(out):
        assert jobs.pretrain(*arguments, "--do_eval") == 0
    assert "already trained to step 23" in capsys.readouterr().err
    assert (out / "eval_results.txt").exists()
    assert (out / "metrics.jsonl").read_bytes() == lines


def test_each_changed_flag_is_told_once_and_its_new_value_used(finished, whole, capsys):
    out, arguments = finished.out, [*finished.flags, f"--init_checkpoint={whole.out}"]
    changed = ["--num_train_steps=25", "--train_batch_size=8", "--learning_rate=0.5"]
    assert jobs.pretrain(*arguments, *changed) == 0
    said = capsys.readouterr().err
    for text in ("--train_batch_size=4, not 8", "--learning_rate=0.01, not 0.5"):
        assert said.count(text) == 1
    assert f"start: resuming from {out}/model.ckpt-23" in said  # whatever --init_checkpoint is
    last = metrics(out)[-1]
    assert last["step"] == 25 and last["learning_rate"] > 0.01
    # 23 steps of 4 records, then 2 of 8.
    assert metadata.read_run_state(str(out / "model.ckpt-25"))["records_seen"] == 108


def test_a_warm_start_accounts_for_every_variable_and_misses_none_of_the_encoder(whole, tmp_path, capsys):
    weights = checkpoints.open_weights(str(whole.out))
    tensors = {name: weights.read(name) for name in weights.shapes}
    lost, absent, other = "bert/pooler/dense/bias", tmp_path / "absent", tmp_path / "other"
    checkpoints.write(str(absent), {n: t for n, t in tensors.items() if n != lost})
    checkpoints.write(str(other), tensors | {lost: tensors[lost][:5]})
    begin = [*whole.flags, f"--output_dir={tmp_path}/new", "--num_train_steps=1", "--num_warmup_steps=0"]
    for more, said in (
        ([f"--init_checkpoint={absent}"], f"{lost} [16]: not in the"),
        ([f"--init_checkpoint={other}"], f"{lost}: checkpoint [5], model [16]"),
        ([f"--init_checkpoint={other}", "--allow_partial_init"], f"{lost}: checkpoint [5], model"),
    ):
        assert jobs.pretrain(*begin, *more) == 2
        assert said in assert_one_clear_line(capsys.readouterr().err)
    assert not list((tmp_path / "new").glob("model.ckpt*"))
    assert jobs.pretrain(*begin, f"--init_checkpoint={absent}", "--allow_partial_init") == 0
    account = results_of(tmp_path / "new", "warm_start")
    loaded, new, ignored = (account[key] for key in ("loaded", "new", "ignored"))
    said = capsys.readouterr().err
    assert f"missing in {absent}, so initialized randomly: {lost}" in said
    assert f"loaded {len(loaded)} of {len(loaded) + 1} variables" in said and new == [lost]
    # An optimizer's variables and the step are not named: it would look as if the encoder was left out.
    assert "variables, initialized 1 (bert/pooler), left out 0\n" in said
    assert "global_step" in ignored
    assert {*loaded, *ignored} == tensors.keys() - {lost}


# --- Texts ---


def test_odd_but_good_tables_give_the_right_rows(tmp_path):
    rows = [
        '"w1 never closed\t1', "a\u2028b\x0bc\x85d\t0", "nul\0l\t1", f"{'w1 ' * 100_000}\t0",
        "\t1", "crlf\t0\r",
    ]
    (tmp_path / "SST-2").mkdir()
    path = tmp_path / "SST-2/train.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + ("text\tlabel\r\n" + "\n".join(rows) + "\n").encode())
    found = glue.read_examples(glue.TASKS["sst-2"], str(tmp_path), "train")
    assert [(e.text_a, e.label) for e in found] == [tuple(row.rstrip("\r").split("\t")) for row in rows]


def test_a_text_of_nothing_is_the_two_marks(tmp_path):
    tokenizer = FullTokenizer(jobs.write_vocabulary(tmp_path), True)
    for text in ("", "   ", "\u200b\x00", "\ud800"):
        [row] = features.encode_texts(tokenizer, [(text, None)], 8)
        used = row["input_ids"][: int(row["input_mask"].sum())].tolist()
        unknown = tokenizer.vocab["[UNK]"]
        assert [i for i in used if i != unknown] == [tokenizer.cls_id, tokenizer.sep_id]


@pytest.mark.parametrize(
    ("kind", "size", "most"),
    [("sentences", 2 << 20, 48 << 20),
     pytest.param("one sentence", 300_000, 16 << 20, marks=pytest.mark.slow),
     pytest.param("corpus", 200 << 20, 256 << 20, marks=pytest.mark.slow)],
)
def test_huge_texts_take_little_more_memory_than_tiny_ones(kind, size, most, tmp_path, made_once):
    peak = jobs.peak_of_data_creation
    _, tiny = made_once("tiny-text", lambda folder: peak(*jobs.data_flags(folder, dupe_factor=1)))
    arguments = jobs.data_flags(tmp_path, dupe_factor=1)
    sentence = " ".join(jobs.WORDS[:10])
    # A single document, a single line, and documents of 20 sentences.
    parts = {"sentences": f"{sentence}\n", "one sentence": f"{sentence} ",
             "corpus": f"{sentence}\n" * 20 + "\n"}
    with open(tmp_path / "corpus.txt", "a") as stream:
        stream.write("\n" + parts[kind] * (size // len(parts[kind])) + "\n")
    assert peak(*arguments) < tiny + most
    assert (tmp_path / "out.tfrecord").exists()
    assert_tidy(tmp_path)

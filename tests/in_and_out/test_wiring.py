"""Every setting of a training command has its effect, and what is recorded or planned arrives as well.

One table of settings, and one run of each command, which changes all of them from their defaults.
What the loop was given and what it left show that they arrived. A new flag needs a row here, or an
entry in ELSEWHERE.
"""

import collections
import dataclasses
import json
import math
import pathlib
import re
import shutil
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jobs
import keras
import numpy as np
import pytest
from helpers import (
    SIZES, metrics, run_here, train_pieces, write_config, write_pretraining_records, write_text,
)
from making_records import flags_of

import albert
from albert import (
    convert_hf, create_pretraining_data, pretrain_from_text, run_classifier, run_pretraining, run_race,
    run_squad, run_token_classifier,
)
from albert.cli import flags, text_plan
from albert.config import AlbertConfig
from albert.errors import DataError, Preempted, UserError
from albert.formats import checkpoints, pretrained
from albert.pretraining_data import pipeline
from albert.records.examples import FeatureSpec
from albert.text.documents import ReadingCounts, read_documents
from albert.tokenization import FullTokenizer
from albert.training import loop, steps
from albert.training.run import RunConfig, current, restore


@dataclasses.dataclass
class Seen:
    """What a command gave to the loop, to the engine and to the step, and the directory it left."""

    out: pathlib.Path
    task: Any
    config: AlbertConfig
    run: Any
    optimizer: Any
    train: Any
    dev: Any
    state: Any
    step_run: Any
    batches: dict[str, Any]
    eval_batches: list[dict[str, Any]]  # one for each data set evaluated
    seeds: list[int]  # of the first weights, the order of records and dropout

    def lines(self, kind: str) -> list[dict]:
        return [line for line in metrics(self.out) if line["kind"] == kind]

    @property
    def saved(self) -> list[str]:
        """The names of the tensors in the newest checkpoint."""
        return list(checkpoints.open_weights(checkpoints.newest_or_best(str(self.out))).shapes)

    @property
    def tokenizer(self) -> FullTokenizer:
        return pretrained.open_path(str(self.out), "model").vocabulary.open()

    def ids_of(self, records) -> np.ndarray:
        """The ids of the first block of records."""
        spec = self.task.feature_spec()
        only_ids = FeatureSpec({"input_ids": spec.features["input_ids"]})
        return records.read_block(0, only_ids, 1 << 31)["input_ids"]

    @property
    def first_text(self) -> str:
        """The tokens of the first record that is trained on."""
        [ids, *_] = self.ids_of(self.train)
        return "".join(self.tokenizer.convert_ids_to_tokens([int(i) for i in ids]))

    @property
    def facts(self) -> dict[str, Any]:
        path = pathlib.Path(f"{checkpoints.newest_or_best(str(self.out))}.json")
        return json.loads(path.read_text())["metadata"]


class Setting(NamedTuple):
    value: object
    effect: Callable[[Seen], object]
    expected: object


def rates(seen: Seen) -> list[float]:
    return [line["learning_rate"] for line in seen.lines("train")]


def of_task(name: str) -> Callable[[Seen], object]:
    return lambda seen: getattr(seen.task, name)


def option(name: str) -> Callable[[Seen], object]:
    return lambda seen: getattr(seen.state.model.encoder_options, name)


def lengths(seen: Seen) -> list[int]:
    return [seen.ids_of(records).shape[1] for records in (seen.train, seen.dev)]


# Peak 0.004 in 5 steps, of which the rate rises in 2: t / 2, then 1 - t / 5.
RATES = pytest.approx([0, 0.002, 0.0024, 0.0016, 0.0008])
STEPS = {
    "learning_rate": Setting(0.004, rates, RATES),
    "log_steps": Setting(1, lambda s: [line["step"] for line in s.lines("train")], [1, 2, 3, 4, 5]),
    "save_checkpoints_steps": Setting(2, lambda s: [line["step"] for line in s.lines("eval")], [2, 4, 5]),
    "keep_checkpoint_max": Setting(1, lambda s: list(checkpoints.list_steps(str(s.out))), [5]),
    "seed": Setting(7, lambda s: s.seeds, [7, 7, 7]),
    "train_batch_size": Setting(4, lambda s: s.batches["batch_size"], 4),
    "eval_batch_size": Setting(3, lambda s: s.eval_batches[0]["batch_size"], 3),
    "gradient_accumulation_steps": Setting(2, lambda s: s.batches["micro_batches"], 2),
    "remat": Setting(True, option("remat"), True),
    "mixed_precision": Setting("bfloat16", lambda s: s.state.model.compute_dtype, "bfloat16"),
    "pack_rows": Setting(False, lambda s: s.batches.get("packed_rows", 0), 0),
    "max_seq_length": Setting(13, lengths, [13, 13]),
    "do_lower_case": Setting(False, lambda s: s.tokenizer.preprocess("É"), "É"),
    "keep_accents": Setting(True, lambda s: s.tokenizer.preprocess("é"), "é"),
}
TUNING = STEPS | {
    "optimizer": Setting("lamb", lambda s: s.optimizer.name, "lamb"),
    "train_step": Setting(5, rates, RATES),
    "warmup_step": Setting(2, rates, RATES),
    "predict_batch_size": Setting(2, lambda s: s.eval_batches[1]["batch_size"], 2),
    "albert_dropout": Setting(
        0.25, lambda s: [s.config.hidden_dropout_prob, s.config.attention_probs_dropout_prob], [0.25] * 2),
    "classifier_dropout": Setting(0.35, lambda s: s.state.model.classifier_dropout, 0.35),
    "freeze_encoder": Setting(True, lambda s: [
        name for name in (*s.state.trained, *filter(checkpoints.is_slot, s.saved)) if name.startswith("bert/")
    ], []),
}


def without(settings: dict[str, Setting], *names: str, **more: Setting) -> dict[str, Setting]:
    return {name: setting for name, setting in settings.items() if name not in names} | more


class Command(NamedTuple):
    module: Any
    flags: Callable[[pathlib.Path], list[str]]  # where the data are, and what to do
    settings: dict[str, Setting]
    epochs: float | None = None  # --num_train_epochs that are 5 steps of 4


def own_table(folder: pathlib.Path) -> list[str]:
    lines = [f"w{i} w{i % 7},{'no' if i % 3 else 'yes'}" for i in range(30)]
    (folder / "my.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return [f"--train_file={folder / 'my.csv'}", f"--test_file={folder / 'my.csv'}",
            f"--output_dir={folder / 'out'}", "--do_train", "--do_eval", "--do_predict",
            "--cross_validation=0"]


def all_actions(made: Callable[..., list[str]]) -> Callable[[pathlib.Path], list[str]]:
    kept = re.compile("--(data_dir|task_name|output_dir|input_file|train_file|predict_file|max_.*)=")
    return lambda folder: [
        *filter(kept.match, made(folder)), "--do_train", "--do_eval",
        *(["--do_predict"] if made is not jobs.pretraining_flags else []),
    ]


COMMANDS = {
    "classifier": Command(run_classifier, all_actions(jobs.classifier_flags), TUNING, 1.5),
    "own_table": Command(run_classifier, own_table, without(
        TUNING,
        label_list=Setting("yes,no", lambda s: [s.task.labels, s.facts["label_names"]],
                           [("yes", "no"), ["yes", "no"]]),
        # N / 2 n of each label: the rare one more, and both the same in sum.
        class_weights=Setting("balanced", lambda s: s.task.class_weights[0] > s.task.class_weights[1] and sum(
            1 / weight for weight in s.task.class_weights), pytest.approx(2)),
        dev_share=Setting(0.4, lambda s: s.train.count < 25 and s.train.count + s.dev.count, 30),
    )),
    "tokens": Command(run_token_classifier, all_actions(jobs.token_flags), TUNING | {
        "label_list": Setting("O,I-PER,B-PER", lambda s: [s.task.labels, s.facts["label_names"]],
                              [("O", "I-PER", "B-PER"), ["O", "I-PER", "B-PER"]]),
        "scheme": Setting("none", of_task("best_metric"), "eval_accuracy"),
        "albert_dropout": TUNING["albert_dropout"]._replace(value=0, expected=[0, 0]),
    }, 2.25),
    "race": Command(run_race, all_actions(jobs.race_flags), without(
        TUNING, "classifier_dropout", "optimizer",
        dropout_prob=TUNING["classifier_dropout"],
        max_qa_length=Setting(7, of_task("max_qa_length"), 7),
        max_seq_length=Setting(13, of_task("max_seq_length"), 13),
        high_only=Setting(True, lambda s: s.train.count, 8),
    ), 1.5),
    "squad": Command(run_squad, all_actions(jobs.squad_flags), without(
        TUNING, "classifier_dropout", "optimizer", "train_step", "warmup_step", "predict_batch_size",
        num_train_epochs=Setting(2.5, rates, RATES),
        warmup_proportion=Setting(0.4, rates, RATES),
        version_2_with_negative=Setting(True, of_task("name"), "squad_v2"),
        dropout_prob=Setting(0.35, lambda s: s.state.model.classifier_dropout, 0.35),
        doc_stride=Setting(3, of_task("doc_stride"), 3),
        max_query_length=Setting(5, of_task("max_query_length"), 5),
        max_answer_length=Setting(2, of_task("max_answer_length"), 2),
        n_best_size=Setting(4, of_task("n_best_size"), 4),
        start_n_top=Setting(3, of_task("start_n_top"), 3),
        end_n_top=Setting(2, of_task("end_n_top"), 2),
    )),
    # Peak 0.004 from step 3 on, after a warm-up from step 1 to 3; the last 3 of 7 steps decay as
    # (left / 3)**2; it ends after the sixth.
    "pretraining": Command(run_pretraining, all_actions(jobs.pretraining_flags), without(
        STEPS, "max_seq_length",
        **dict.fromkeys(
            ("learning_rate", "num_train_steps", "num_warmup_steps", "start_warmup_step",
             "num_decay_steps", "poly_power"), None),
        until_step=Setting(6, lambda s: s.step_run.last_step, 6),
        optimizer=Setting("muon", lambda s: s.optimizer.name, "muon"),
        max_eval_steps=Setting(5, lambda s: s.eval_batches[0]["num_batches"], 5),
        input_processes=Setting(2, lambda s: s.batches["processes"], 2),
    )),
}
CURVE = pytest.approx([0, 0, 0.002, 0.004, 0.004, 0.004 * (2 / 3) ** 2])
COMMANDS["pretraining"].settings.update({
    name: Setting(value, rates, CURVE) for name, value in (
        ("learning_rate", 0.004), ("num_train_steps", 7), ("num_warmup_steps", 2),
        ("start_warmup_step", 1), ("num_decay_steps", 3), ("poly_power", 2),
    )
})
COMMANDS["pretraining"].settings.update({
    "log_steps": Setting(1, lambda s: [line["step"] for line in s.lines("train")], [1, 2, 3, 4, 5, 6]),
    "save_checkpoints_steps": Setting(4, lambda s: [line["step"] for line in s.lines("eval")], [4, 6]),
    "keep_checkpoint_max": Setting(1, lambda s: list(checkpoints.list_steps(str(s.out))), [6]),
})

DATA = {
    "albert_config_file", "albert_hub_module_handle", "cached_dir", "checkpoint", "data_dir",
    "dev_file", "do_eval", "do_predict", "do_train", "eval_file", "eval_input_file", "export_dir",
    "init_checkpoint", "input_file", "output_dir", "predict_feature_file",
    "predict_feature_left_file", "predict_file", "spm_model_file", "task_name", "test_file",
    "train_feature_file", "train_file", "vocab_file",
}
DEVICES = {  # test_distribution, test_jax_engine
    "distribution_strategy", "engine", "gcp_project", "iterations_per_loop", "master", "num_gpus",
    "num_tpu_cores", "num_virtual_devices", "tpu_name", "tpu_zone", "use_einsum", "use_tpu",
}
ELSEWHERE = DATA | DEVICES | {
    "num_train_epochs", "pad_to_max_seq_length", "train_step", "use_xla", "warmup_step",  # below
    "num_keep_checkpoint",  # an alias
    "middle_only",  # test_fine_tuning
    "null_score_diff_threshold", "predict_batch_size",  # test_run_squad
    # test_own_file, test_tables, test_classifier_report
    "class_weights", "cross_validation", "delimiter", "dev_share", "encoding", "label_column",
    "label_columns", "label_list", "regression", "text_column", "text_pair_column", "threshold",
    "threshold_to_export", "tsv_header",
    # test_pretraining_start, test_pair_records
    "allow_partial_init", "do_whole_word_mask", "favor_shorter_ngram", "init_embeddings",
    "init_from_group0", "mask_token_share", "masked_lm_budget", "max_predictions_per_seq",
    "max_seq_length", "ngram",
    "teacher", "init_from_teacher",  # test_teacher
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_a_command_is_in_the_table(name):
    command = COMMANDS[name]
    names = set(flags.parse(command.module.define_flags, ["x"]))
    aliases = {"classifier_dropout"} if "dropout_prob" in command.settings else set()
    assert names - set(command.settings) - aliases <= ELSEWHERE
    assert set(command.settings) <= names


def vocabulary_flags(folder: pathlib.Path) -> list[str]:
    """A SentencePiece vocabulary with accents and capitals, and a small model for it."""
    texts = [f"{word} wé wÉ we wE x" for word in jobs.WORDS]
    path = train_pieces(folder / "spm", texts, 60, character_coverage=1.0,
                        normalization_rule_name="identity", user_defined_symbols=jobs.WORDS)
    size = FullTokenizer(None, True, path).vocab_size
    write_pretraining_records(folder / "train.tfrecord", vocab_size=size)
    config = write_config(folder, **jobs.TUNED, vocab_size=size)
    return [f"--spm_model_file={path}", f"--albert_config_file={config}"]


def as_typed(settings: dict[str, Setting]) -> list[str]:
    return [f"--{name}={str(setting.value).lower() if isinstance(setting.value, bool) else setting.value}"
            for name, setting in settings.items()]


@pytest.fixture
def observed(monkeypatch):
    """Function that runs a command and returns what was `Seen`."""
    calls = collections.defaultdict(list)

    def observe(owner, name):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **options: (
            calls[name].append((given, options)), original(*given, **options))[1])

    for owner, name in (
        (loop, "train"), (steps, "train_step"), (steps, "dropout_seed"),
        (keras.utils, "set_random_seed"),
        *((type(current()), name) for name in ("train_batches", "eval_batches")),
    ):
        observe(owner, name)

    def run(command: Command, *given: str) -> Seen:
        assert jobs.command(command.module, *given) == 0
        [(arguments, options)] = calls["train"]
        step = calls["train_step"][0][1]
        [(_, batches)] = calls["train_batches"]
        seeds = [calls["set_random_seed"][0][0][0], batches["seed"], calls["dropout_seed"][0][0][0]]
        [out] = [flag.partition("=")[2] for flag in given if flag.startswith("--output_dir=")]
        return Seen(pathlib.Path(out), *arguments, options["eval_files"], step["state"], step["run"], batches,
                    [given for _, given in calls["eval_batches"]], seeds)

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_setting_arrives_where_it_has_its_effect(name, tmp_path, observed):
    command = COMMANDS[name]
    given = [*command.flags(tmp_path), *vocabulary_flags(tmp_path), *as_typed(command.settings)]
    seen = observed(command, *given)
    found = {name: setting.effect(seen) for name, setting in command.settings.items()}
    assert found == {name: setting.expected for name, setting in command.settings.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_settings_that_exclude_those_arrive_too(name, tmp_path, begin):
    command = COMMANDS[name]
    given = [*command.flags(tmp_path), *vocabulary_flags(tmp_path), "--use_xla", "--train_batch_size=4"]
    if name != "pretraining":
        given.append("--pad_to_max_seq_length")
    if name == "squad":
        given += ["--train_step=5", "--warmup_step=4", "--predict_batch_size=3"]
    if command.epochs:
        given += [f"--num_train_epochs={command.epochs}", "--warmup_step=4"]
    (_, _, run, optimizer, _), _ = begin(lambda *flags: jobs.command(command.module, *flags), *given)
    assert run.use_xla and run.pad_to_max_seq_length == (name != "pretraining")
    if command.epochs or name == "squad":
        schedule = run.num_train_steps, optimizer.num_train_steps, optimizer.num_warmup_steps
        assert schedule == (5, 5, 4)
    if name == "squad":  # which predicts what it evaluates
        assert run.eval_batch_size == 3


# --- Commands of pretrain_from_text ---

CONFIG = AlbertConfig(**SIZES | {"num_hidden_layers": 1})


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
    monkeypatch.setattr(text_plan, "MAX_HELD_OUT", 0.2)
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

"""`pretrain_from_text`: from a text and a number of hours to a model and a report."""

import collections
import json
import pathlib
import random
import re
import shutil
import types

import pytest
from absl import flags as absl_flags
from helpers import REPO, SIZES, assert_one_clear_line, run_here
from jobs import SPECIALS

import albert
from albert import pretrain_from_text, run_pretraining
from albert.cli import flags, text_plan, text_report
from albert.errors import Preempted
from albert.records.manifests import Manifest
from albert.storage import locks
from albert.text.spm_model import trained_with


def stop(values):
    raise Preempted("stopped by SIGTERM", 15)


def begin(folder: pathlib.Path, text: str, *more: str) -> int:
    """Starts with a text; returns the exit code."""
    (folder / "text.txt").write_text(text, encoding="utf-8")
    return run_here(pretrain_from_text, f"--input_file={folder / 'text.txt'}", "--hours=0.001",
                    f"--output_dir={folder / 'out'}", *more)


def text_of(letters: str, documents: int, sentences: int = 20, words: int = 9) -> str:
    rng = random.Random(0)

    def sentence() -> str:
        return " ".join("".join(rng.choices(letters, k=5)) for _ in range(words)) + "."

    return "\n\n".join("\n".join(sentence() for _ in range(sentences)) for _ in range(documents))


def files_of(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()
            if path.is_file() and path.name != ".lock"}


@pytest.fixture
def is_slow(monkeypatch):
    """Plans for a slow machine, which makes few steps."""
    monkeypatch.setattr(text_plan, "CORE_FLOPS", 1e7)


def test_text_becomes_a_model_with_a_report_and_an_interrupted_run_resumes(
    is_slow, tmp_path, monkeypatch, capsys, caplog
):
    out = tmp_path / "out"
    text = "\n\n".join(page.read_text("utf-8") for page in sorted(REPO.glob("docs/guides/*.md")))
    # The brackets of [MASK] are unknown to the vocabulary.
    (tmp_path / "my.txt").write_text(text.translate(dict.fromkeys(map(ord, "[]"))))
    command = [f"--input_file={tmp_path / 'my.txt'}", "--hours=0.001", "--keep_accents", f"--output_dir={out}"]
    train = run_pretraining.main

    def preempted(values):
        train(values) if values.until_step else stop(values)

    monkeypatch.setattr(run_pretraining, "main", preempted)
    assert run_here(pretrain_from_text, *command) == 143
    plan = (out / "plan.json").read_bytes()
    monkeypatch.setattr(run_pretraining, "main", train)
    assert run_here(pretrain_from_text, *command) == 0
    assert (out / "plan.json").read_bytes() == plan
    assert "unknown to the vocabulary" not in caplog.text
    # The data took more than the four seconds; it trains all the same.
    assert json.loads(plan)["training"]["num_train_steps"] >= 20
    report = (out / "report.md").read_text()
    results = json.loads((out / "model" / "eval_results.json").read_text())
    assert f"{100 * results['masked_lm_accuracy']:.1f} %" in report
    assert report.count("[MASK]") >= 2
    assert "reads 48 tokens of a text, as in training, and up to 128 with `--max_seq_length`" in report
    session = albert.open_session(out / "model")
    assert session.fill_mask("A [MASK].", top_k=1)
    assert session.tokenizer.settings.keep_accents
    # A held-out segment may lie within a long word, which has more tokens as a text.
    assert text_report._masked_words(session, [[*"anameofmanyparts"] * 3])

    # Other flags for the same directory are refused, and nothing changes.
    before = files_of(out), files_of(out / "model")
    capsys.readouterr()
    assert run_here(pretrain_from_text, *command, "--hours=7") == 2
    assert "--hours=7.0" in assert_one_clear_line(capsys.readouterr().err)
    assert (files_of(out), files_of(out / "model")) == before


def test_another_text_and_a_second_process_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_pretraining, "main", stop)
    text, out = tmp_path / "text.txt", tmp_path / "out"
    content = "".join(
        f"The {i}th sentence of this text is about number {i}.\n" + "\n" * (i % 9 == 8)
        for i in range(900)
    )
    with locks.hold(str(out)):
        assert begin(tmp_path, content) == 2
        assert f"{out} is in use by pid" in assert_one_clear_line(capsys.readouterr().err)
        assert [path.name for path in out.iterdir()] == [".lock"]
    assert begin(tmp_path, content) == 143
    for changed in (content.replace("899", "901"), content.replace("850th", "x50th"), content[:-99]):
        before = files_of(out)
        capsys.readouterr()
        assert begin(tmp_path, changed + " ") == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        assert line == (f"error: --input_file={text} has changed since {out} was started: put it back, "
                        "or use another --output_dir")
        assert files_of(out) == before
    text.write_text(content)
    renamed = text.rename(tmp_path / "renamed.txt")  # the same text
    assert begin(tmp_path, "", f"--input_file={renamed}") == 143


def test_with_a_teacher_the_model_has_its_layers_and_the_words_of_the_text(is_slow, tmp_path, monkeypatch):
    measuring(monkeypatch, 1e3, run_pretraining.main)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["the", "model", "text", "of", "files", "zebra", *letters, *(f"##{x}" for x in letters)]
    config = albert.AlbertConfig(**SIZES | {
        "vocab_size": len(words) + 5, "embedding_size": 16, "num_hidden_groups": 2,
        "max_position_embeddings": 64, "hidden_dropout_prob": 0.1})
    albert.AlbertModel(config).save_pretrained(tmp_path / "teacher")
    (tmp_path / "teacher/vocab.txt").write_text("\n".join([*SPECIALS, *words]))
    out = tmp_path / "out"
    command = [f"--input_file={REPO / 'docs' / 'guides'}", "--hours=0.001", f"--output_dir={out}"]
    assert run_here(pretrain_from_text, *command, f"--teacher={tmp_path / 'teacher'}") == 0
    model = albert.from_pretrained(out / "model")
    assert (model.config.num_hidden_groups, model.config.hidden_size) == (2, 16)
    assert model.config.hidden_dropout_prob == 0.1  # to be fine-tuned with
    vocabulary = (out / "model/vocab.txt").read_text().split()
    assert vocabulary == [*SPECIALS, *(word for word in words if word != "zebra")]
    report = (out / "report.md").read_text()
    assert "sentence order" not in report  # a teacher of sentences was not trained on pairs
    assert float(re.search(r"\| similarity to the teacher \| ([\d.]+) \|", report)[1]) > 0.5
    assert run_here(pretrain_from_text, *command, "--teacher=small_en") == 2  # not the one it began with


def test_what_cannot_be_begun_is_refused_before_anything_is_made(tmp_path, capsys):
    for more, message in ((["--start_from=small_en", "--teacher=small_en"], "only one of"),
                          (["--input_file=absent.txt"], "absent.txt")):
        assert begin(tmp_path, "", *more) == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("letters", "flags", "is_kept"), [
    ("aeiou", [], False), ("aeiouạệ", [], True), ("aeiouạệ", ["--nokeep_accents"], False),
])
def test_accents_of_a_text_with_many_are_kept_unless_the_flag_says_otherwise(
    letters, flags, is_kept, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(run_pretraining, "main", stop)
    assert begin(tmp_path, text_of(letters, 9), *flags) == 143
    assert trained_with(str(tmp_path / "out/spm.model")).get("keep_accents", False) == is_kept
    lower, *notes = json.loads((tmp_path / "out/plan.json").read_text())["notes"]
    assert lower == "Capitals are lower-cased" and len(notes) == ("ạ" in letters)
    for note in notes:
        assert "of the letters have accents or marks (" in note and note in caplog.text
        assert "which are kept; --nokeep_accents" in note if is_kept else "which are dropped" in note


def test_where_another_models_vocabulary_decides_about_accents_no_flag_is_advised(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(run_pretraining, "main", stop)
    text = "\n\n".join(f"Un été {n} à la mer." for n in range(300))
    assert begin(tmp_path, text, "--start_from=small_en") == 143
    assert "which are dropped" in caplog.text and "keep_accents changes" not in caplog.text


def test_the_model_sees_nine_tenths_of_a_novel_and_the_report_says_so(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(run_pretraining, "main", stop)
    long = text_of("abcdefgh", 4, sentences=40, words=60)  # most are longer than the sequences
    assert begin(tmp_path, long) == 143
    path = str(tmp_path / "out/records/train.tfrecord")
    report = Manifest.read(path).info["report"]
    assert report["cut_tokens"] < 0.01
    assert re.fullmatch(r"The records hold (99|100)\.\d % of the text's tokens", text_report.coverage(path))
    command_flags = absl_flags.FlagValues()
    pretrain_from_text.define_flags(command_flags)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    for name in re.findall(r"--(\w+)", " ".join(warnings)):
        assert {name, name.removeprefix("no")} & set(command_flags), warnings


def measuring(monkeypatch, rate: float, then=stop) -> list[dict]:
    """Shows this rate instead of the first steps, then trains or stops; returns the flags of both."""
    started = []

    def train(values):
        started.append(flags.to_dict(values))
        if not values.until_step:
            shutil.rmtree(values.output_dir)
            then(values)
            return
        pathlib.Path(values.output_dir).mkdir()
        pathlib.Path(values.output_dir, "metrics.jsonl").write_text(
            json.dumps({"kind": "train", "step": 1, "tokens_per_second": rate}) + "\n")

    monkeypatch.setattr(run_pretraining, "main", train)
    return started


def test_passes_over_a_text_are_counted_in_records(tmp_path, monkeypatch):
    measuring(monkeypatch, 1e9)  # the text is the limit
    assert begin(tmp_path, text_of("abcdefgh", 200), "--hours=1") == 143
    plan = json.loads((tmp_path / "out/plan.json").read_text())["training"]
    records = Manifest.read(str(tmp_path / "out/records/train.tfrecord")).records
    passes = plan["num_train_steps"] * plan["train_batch_size"] / records
    assert passes == pytest.approx(text_plan.MAX_PASSES, rel=0.02)


def test_a_vocabulary_need_not_hold_characters_that_hardly_occur():
    common, rare = collections.Counter("abcdefgh " * 100_000), [chr(0x4E00 + i) for i in range(20)]
    # SentencePiece keeps the most frequent characters that make up 99.995 % of the text.
    assert text_plan.covered(common + collections.Counter(rare)) == 9
    assert text_plan.covered(common + collections.Counter(rare * 1000)) == 29


def test_the_time_that_the_data_took_is_not_trained_and_the_rate_is_the_measured_one(
    tmp_path, monkeypatch
):
    clock = [0.0]
    monkeypatch.setattr(pretrain_from_text, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    started, run_step = measuring(monkeypatch, 500), pretrain_from_text._run

    def spend(name, *arguments):
        clock[0] += 600  # each step takes ten minutes
        run_step(name, *arguments)

    monkeypatch.setattr(pretrain_from_text, "_run", spend)
    assert run_here(pretrain_from_text, f"--input_file={REPO / 'docs/guides'}", "--hours=1",
                    f"--output_dir={tmp_path / 'out'}") == 143
    assert json.loads((tmp_path / "out/plan.json").read_text())["tokens_per_second"] == 500
    measured, planned = started
    report = Manifest.read(str(tmp_path / "out/records/train.tfrecord")).info["report"]
    length = round(report["tokens"] / report["records"] + 2)  # without padding
    tokens = planned["train_batch_size"] * length
    # After vocabulary, records and the measured steps, half an hour is left.
    trained = measured["until_step"] * measured["train_batch_size"] * length / 500
    expected = (0.95 * 1800 + trained) * 500 / tokens
    assert planned["num_train_steps"] == pytest.approx(expected, abs=1)
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    others = (planned["num_train_steps"] - measured["until_step"]) * planned["train_batch_size"]
    assert plan["sequences"] == measured["until_step"] * measured["train_batch_size"] + others
    assert planned["seed"] == measured["seed"] == 12345 and 1 < measured["until_step"] < 1e5


def size_named(name):
    return next(size for size in text_plan.SIZES if size.name == name)


def test_more_time_and_more_text_buy_a_larger_model():
    hour = 3600 * 1e11
    sizes = [size.name for size in text_plan.SIZES]
    for text, flops, expected in (
        (4e5, 1e9 * hour, "one_layer"), (1e9, 0.05 * hour, "one_layer"), (1e6, 1e9 * hour, "quickstart"),
        (1e9, hour, "quickstart"), (1e9, 2 * hour, "two_layers"), (1e8, 20 * hour, "tiny"),
        (1e8, 100 * hour, "mini"), (1e9, 1e5 * hour, "large_v2"),
    ):
        assert text_plan.choose_size(text / 4.5, flops).name == expected, (text, flops)
    chosen = [
        sizes.index(text_plan.choose_size(1e9, 4**i * hour).name) for i in range(-2, 12)
    ]
    assert chosen == sorted(chosen) and chosen[0] == 0 and chosen[-1] == len(sizes) - 1


def test_steps_fill_the_time_but_read_a_short_text_no_more_than_a_hundred_times():
    tiny = size_named("tiny")
    long = text_plan.training_flags(tiny, 1e9, 5000, 3600)
    assert long["num_train_steps"] == pytest.approx(3600 * 5000 / (64 * 64), abs=1)
    short = text_plan.training_flags(tiny, 1e4, 5000, 3600)
    tokens = short["num_train_steps"] * short["train_batch_size"] * tiny.length
    assert tokens == pytest.approx(100 * 1e4, rel=0.01)
    assert short["train_batch_size"] < 64 and short["learning_rate"] < tiny.rate


def test_a_vocabulary_holds_the_characters_of_the_text_and_is_no_larger_than_its_use():
    mini = size_named("mini")
    assert text_plan.vocabulary_size(mini, 10**9 / 4.5, 100) == 16_000
    assert text_plan.vocabulary_size(mini, 10**6 / 4.5, 100) == 4_500
    assert text_plan.vocabulary_size(mini, 10**6 / 4.5, 4000) == 8_000  # Chinese


def test_short_runs_save_seldom_and_a_student_warms_up_slowly():
    def planned(size, minutes):
        return text_plan.training_flags(size, 1e9, 5000, 60 * minutes)

    saves = {minutes: planned(size_named("tiny"), minutes) for minutes in (1, 3, 10, 60, 600)}
    counts = [round(x["num_train_steps"] / x["save_checkpoints_steps"]) for x in saves.values()]
    assert counts == [1, 3, 10, 10, 60]
    student = planned(text_plan.STUDENT, 1)
    assert student["num_warmup_steps"] == min(100, student["num_train_steps"] // 2)
    tiny = planned(size_named("tiny"), 1)
    assert tiny["num_warmup_steps"] == round(text_plan.WARMUP * tiny["num_train_steps"]) < 20

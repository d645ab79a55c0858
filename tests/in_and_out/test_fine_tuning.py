"""The common behaviour of the fine-tuning commands: one run of each, refusals."""

import re

import jobs
import pytest
from helpers import assert_one_clear_line, metrics, results_of

from albert import finetune, run_classifier
from albert.cli import flags
from albert.finetune import settings_of
from albert.formats import checkpoints

each_task = pytest.mark.parametrize("name", jobs.TUNERS)


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


# test_run_classifier and test_run_race name checkpoints too.
@pytest.mark.parametrize("name", [
    "squad", "tokens", *(pytest.param(x, marks=pytest.mark.slow) for x in ("classifier", "race")),
])
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


# --- Refusals, before anything is written ---

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
         "out: train first (--do_train) or give --checkpoint"),
    ],
    "squad": [
        (["--nodo_train", "--nodo_predict"], "at least one of"),
        (["--max_seq_length=9"], "--max_seq_length=9 must be greater than --max_query_length=6"),
        (["--nodo_train"], "out: train first (--do_train) or give --checkpoint"),
        (["--train_batch_size=99"], "of 8 questions are less than a batch"),
        (["--predict_file=absent.json"], "--predict_file: no such file: absent.json"),
        (["--warmup_step=1", "--warmup_proportion=0.1"],
         "give only one of --warmup_step and --warmup_proportion"),
        (["--train_step=1"], "give only one of --train_step and --num_train_epochs"),
        (["--pack_rows"], "--pack_rows has no effect on SQuAD 1.1"),
    ],
    "race": [
        (["--max_qa_length=12"], "--max_qa_length=12 leaves no room in --max_seq_length=14"),
        (["--high_only", "--middle_only"], "give only one of --high_only and --middle_only"),
        (["--nodo_train", "--nodo_eval", "--nodo_predict"],
         "at least one of --do_train, --do_eval and --do_predict"),
        (["--data_dir=/nowhere"], "no such directory: /nowhere/RACE/train/middle; --data_dir must"),
    ],
    "tokens": [
        (["--data_dir=/nowhere"], "no such file: /nowhere/train.txt"),
        (["--nodo_train", "--nodo_eval", "--nodo_predict"],
         "at least one of --do_train, --do_eval and --do_predict"),
        (["--label_list=O"], "not two or more different labels"),
        (["--nodo_train"], "out: train first (--do_train) or give --checkpoint"),
        (["--data_dir={}/bad"], "bad/dev.txt:2: I-PER cannot follow O"),
    ],
}


@each_task
def test_flags_and_files_that_cannot_work_are_refused_in_one_line(name, tmp_path, capsys):
    # test_fine_tuners has bad files of the other tasks.
    (tmp_path / "bad").mkdir()
    for split, text in (("train", "w1 B-PER\nw2 O\n"), ("dev", "w1 O\nw2 I-PER\n"), ("test", "w1 O\n")):
        (tmp_path / f"bad/{split}.txt").write_text(text)
    (tmp_path / "train.tfrecord").write_bytes(b"x")
    tuner = jobs.TUNERS[name]
    flags = [*tuner.flags(tmp_path), *tuner.asked]
    for arguments, message in REFUSED[name]:
        assert tuner.run(*flags, *(a.replace("{}", str(tmp_path)) for a in arguments)) == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)
        assert not list((tmp_path / "out").glob("*")), message


@pytest.mark.parametrize("name", jobs.TUNERS)
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

"""Masks drawn while reading: new each epoch, the same for every reader, from pairs stored once."""

import itertools
import json

import numpy as np
import pytest
from helpers import metrics, run_here, write_config
from jobs import SPECIALS
from record_files_made import payloads_of
from making_records import masked_pairs

from albert import create_pretraining_data, run_pretraining
from albert.cli import flags
from albert.pretraining_data import dynamic_masking, features
from albert.pretraining_data.masking import MaskingSettings
from albert.records import batches as numpy_batches
from albert.records import data_order, examples, tf_dataset
from albert.records.data_order import Share
from albert.records.record_files import RecordFiles
from albert.tasks.pretraining import PretrainingTask
from albert.training.run import build_model

LENGTH = 24
SETTINGS = MaskingSettings(5, 0.2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with a vocabulary w0..w49, forty documents of it, and records of both kinds."""
    folder = tmp_path_factory.mktemp("corpus")
    words = [f"w{i}" for i in range(50)]
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *words]) + "\n")
    rng = np.random.default_rng(0)
    texts = ["\n".join(" ".join(rng.choice(words, 3 + (d + n) % 7)) for n in range(9))
             for d in range(40)]
    (folder / "corpus.txt").write_text("\n\n".join(texts) + "\n")
    make(folder, "static", "--dupe_factor=2")
    make(folder, "pairs", "--nostatic_masks", dynamic=True)
    return folder


def make(folder, name, *more, dynamic=False):
    arguments = [
        "command", f"--input_file={folder / 'corpus.txt'}",
        f"--output_file={folder / name}.tfrecord", f"--vocab_file={folder / 'vocab.txt'}",
        f"--max_seq_length={LENGTH}", "--num_processes=1", *more,
    ] + ([] if dynamic else ["--max_predictions_per_seq=5", "--masked_lm_prob=0.2"])
    create_pretraining_data.main(flags.parse(create_pretraining_data.define_flags, arguments))
    return str(folder / f"{name}.tfrecord")


def batches(path, count, batch_size=8, position=0, share=None, settings=SETTINGS, seed=3):
    """Returns the first batches of a run as dictionaries of arrays."""
    spec = dynamic_masking.dynamic_masking(RecordFiles([path]), LENGTH, settings, seed).feature_spec()
    found = numpy_batches.train_batches(
        RecordFiles([path]), spec, batch_size=batch_size, vocab_size=55, seed=3,
        position=position, share=share,
    )
    return list(itertools.islice(found, count))


def joined(parts):
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def originals(batch):
    """Returns the ids before masking."""
    ids = batch["input_ids"].copy()
    row, rank = np.nonzero(batch["masked_lm_weights"])
    ids[row, batch["masked_lm_positions"][row, rank]] = batch["masked_lm_ids"][row, rank]
    return ids


def test_a_run_has_the_features_of_static_records_and_other_masks_each_epoch(corpus):
    path = str(corpus / "pairs.tfrecord")
    count = len(payloads_of(path))
    epochs = [joined(batches(path, 1, count, position=epoch * count)) for epoch in range(2)]
    names = features.masked_features(LENGTH, 5)
    for epoch in epochs:
        assert epoch.keys() == {*names, "is_real_example"}
        for name, (_, length) in names.items():
            assert epoch[name].shape == (count, length), name
        assert (epoch["masked_lm_weights"].sum(axis=1) >= 1).mean() > 0.95

    def keyed(epoch):
        # Two pairs of the corpus hardly ever have the same words.
        rows = zip(originals(epoch), epoch["masked_lm_positions"],
                   epoch["next_sentence_labels"], strict=True)
        return {tuple(sorted(ids)): (positions.tolist(), int(label[0]))
                for ids, positions, label in rows}

    one, two = map(keyed, epochs)
    assert one.keys() == two.keys()
    assert np.mean([one[key][0] != two[key][0] for key in one]) > 0.8
    # A and B are swapped at random again too: half of those whose B is not from a random document.
    changed = np.mean([one[key][1] != two[key][1] for key in one])
    assert 0.15 < changed < 0.65


@pytest.mark.parametrize("position", [8, 1000])
def test_a_resumed_run_draws_the_masks_of_the_uninterrupted_one(corpus, position):
    path = str(corpus / "pairs.tfrecord")
    through = batches(path, position // 8 + 3)[position // 8 :]
    for one, two in zip(through, batches(path, 3, position=position), strict=True):
        same(one, two)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("workers,each", [(2, 1), (2, 2)])
def test_the_masks_are_the_same_however_many_read_them(
    corpus, workers, each, is_large, monkeypatch
):
    if is_large:  # more than a group
        monkeypatch.setattr(data_order, "GROUP_RECORDS", 1)
    path, replicas = str(corpus / "pairs.tfrecord"), workers * each
    whole = batches(path, 4, position=8)
    shares = [
        batches(path, 4 * each, position=8, share=Share(replicas, worker * each, each))
        for worker in range(workers)
    ]
    for number, batch in enumerate(whole):
        parts = [part for share in shares for part in share[number * each : (number + 1) * each]]
        ours, theirs = (sorted(zip(*(x[name].tolist() for name in sorted(x)), strict=True))
                        for x in (batch, joined(parts)))
        assert ours == theirs


def test_masks_follow_from_the_seed(corpus):
    path = str(corpus / "pairs.tfrecord")
    one, again, other = (batches(path, 1, seed=seed)[0] for seed in (3, 3, 4))
    same(one, again)
    assert (one["masked_lm_positions"] != other["masked_lm_positions"]).any()


@pytest.mark.parametrize("objective, share", [
    ("sop", 0.5), ("nsp", 0.5), ("none", 0.0),
])
def test_pairs_that_are_swapped_when_read_have_their_share_of_labels(corpus, objective, share):
    path = make(corpus, objective, f"--sentence_objective={objective}", "--nostatic_masks",
                "--dupe_factor=30", "--strict_sentence_order", dynamic=True)
    found = joined(batches(path, 1, len(payloads_of(path))))["next_sentence_labels"]
    # Passes over a text repeat its pairs, so fewer of them are independent.
    assert abs(np.mean(found) - share) <= (0.06 if share else 0)
    assert dynamic_masking.sentence_objectives(RecordFiles([path])) == (objective,)


@pytest.mark.parametrize("static", [True, False])
def test_each_line_can_be_a_row_by_itself(corpus, static):
    path = make(corpus, f"single-{static}", "--single_sentences", "--sentence_objective=none",
                f"--static_masks={static}", "--dupe_factor=1", dynamic=True)
    lines = [line for line in (corpus / "corpus.txt").read_text().splitlines() if line]
    assert len(payloads_of(path)) == len(lines)
    if static:
        spec = PretrainingTask(LENGTH, 20).feature_spec()
        rows = examples.decode_examples(payloads_of(path), spec)
    else:
        rows = joined(batches(path, 1, len(lines)))
    places = originals(rows)
    found = sorted(
        tuple(row[1 : int(mask.sum()) - 1])
        for row, mask in zip(places, rows["input_mask"], strict=True)
    )
    vocabulary = {f"w{i}": len(SPECIALS) + i for i in range(50)}
    assert found == sorted(tuple(vocabulary[w] for w in line.split()) for line in lines)
    assert (places[:, 0] == SPECIALS.index("[CLS]")).all()
    last = rows["input_mask"].sum(axis=1) - 1
    assert (places[np.arange(len(lines)), last] == SPECIALS.index("[SEP]")).all()
    assert not rows["segment_ids"].any() and not rows["next_sentence_labels"].any()


# --- The command ---


def job(corpus, tmp_path, *more):
    config = write_config(tmp_path, vocab_size=55, max_position_embeddings=24, num_hidden_layers=1)
    return [
        f"--albert_config_file={config}",
        f"--input_file={corpus / 'pairs.tfrecord'}", f"--output_dir={tmp_path / 'out'}",
        f"--max_seq_length={LENGTH}", "--max_predictions_per_seq=5", "--train_batch_size=4",
        "--eval_batch_size=4", "--max_eval_steps=2", "--num_train_steps=6",
        "--num_warmup_steps=1", "--save_checkpoints_steps=3", "--log_steps=3", *more,
    ]


def command(*arguments):
    return run_here(run_pretraining, *arguments)


@pytest.fixture
def task_of(begin):
    """Returns the task of a run without training it."""
    return lambda *arguments: begin(command, *arguments)[0][0]


def test_the_share_of_long_rows_is_masked_in_full_and_too_few_predictions_are_refused(
    corpus, tmp_path, task_of, capsys
):
    path = make(corpus, "long", "--nostatic_masks", "--max_seq_length=128", dynamic=True)
    flags = [flag for flag in job(corpus, tmp_path) if "max_predictions" not in flag] + [
        f"--input_file={path}", "--max_seq_length=128",
        f"--albert_config_file={write_config(tmp_path, vocab_size=55, max_position_embeddings=128)}",
    ]
    task = task_of(*flags, "--masked_lm_budget=0.3")
    assert task.max_predictions_per_seq == task.for_evaluation().max_predictions_per_seq == 38
    ids = np.full((64, 128), 9)
    ids[:, 0], ids[:, 64], ids[:, -1] = 2, 3, 3
    rows = masked_pairs(task.masks, ids, np.tile([63, 62], (64, 1)), np.ones_like(ids),
                        np.zeros((64, 1), int), np.arange(64))
    assert (rows["masked_lm_weights"].sum(axis=1) == 38).all() and rows["masked_lm_weights"].shape[1] == 38
    flags.append("--masked_lm_budget=0.15")
    assert command(*flags, "--max_predictions_per_seq=18") == 2
    assert ("--max_predictions_per_seq=18 is less than the 19 predictions of --masked_lm_budget=0.15"
            in capsys.readouterr().err)
    assert task_of(*flags, "--max_predictions_per_seq=30").max_predictions_per_seq == 30


def test_a_run_masks_on_the_fly_and_evaluates_masked_records(corpus, tmp_path):
    assert command(*job(
        corpus, tmp_path, "--masked_lm_budget=0.2", "--ngram=2", "--max_predictions_per_seq=7",
        "--do_eval", f"--eval_input_file={corpus / 'static.tfrecord'}",
    )) == 0
    out = tmp_path / "out"
    assert 0 < json.loads((out / "eval_results.json").read_text())["masked_lm_loss"] < 6
    [*_, line] = [line for line in metrics(out) if line["kind"] == "train"]
    assert line["step"] == 6 and 0 < line["loss"] < 6


def test_the_masks_of_a_run_follow_its_flags_and_those_of_evaluations_no_seed(corpus, tmp_path, task_of):
    task = task_of(*job(
        corpus, tmp_path, "--masked_lm_budget=0.2", "--seed=4", "--ngram=2", "--nofavor_shorter_ngram",
        "--nodo_whole_word_mask", "--mask_token_share=0.9", "--do_eval",
    ))
    assert task.masks.settings == MaskingSettings(5, 0.2, 2, False, False, 0.9)
    assert (task.masks.seed, task.eval_masks.seed) == (4, 0)


@pytest.mark.parametrize("share, is_said", [(1, True), (0.8, False)])
def test_records_with_another_kind_of_masks_than_the_runs_are_reported(
    corpus, tmp_path, caplog, share, is_said, task_of
):
    task_of(*job(corpus, tmp_path, "--masked_lm_budget=0.2", "--do_eval",
                 f"--mask_token_share={share}", f"--eval_input_file={corpus / 'static.tfrecord'}"))
    line = "static.tfrecord was made with another --mask_token_share than this run's 1: "
    assert (line in caplog.text) == is_said


def test_without_a_sentence_objective_there_is_no_such_loss(corpus, tmp_path, begin):
    path = make(corpus, "no-objective", "--nostatic_masks", "--sentence_objective=none",
                dynamic=True)
    (task, config, settings, _, files), _ = begin(command, *job(
        corpus, tmp_path, "--masked_lm_budget=0.2", f"--input_file={path}"
    ))
    batch = next(iter(tf_dataset.dataset(
        numpy_batches.train_batches, files, task.feature_spec(), batch_size=4, vocab_size=55, seed=3
    )))
    outputs = task.outputs(build_model(task, config, settings), batch, training=False)
    for each in (task, task.for_evaluation()):
        assert set(each.loss_sums(batch, outputs)) == set(each.loss_weights(batch)) == {"masked_lm"}
        assert set(each.statistics(batch, outputs)) == {"masked_lm_accuracy", "masked_lm_loss"}
        assert set(each.predictions(batch, outputs)) == {"masked_lm", "is_real_example"}


def test_rows_of_single_sentences_may_lie_among_pairs(corpus):
    single = make(corpus, "single-among", "--nostatic_masks", "--single_sentences",
                  "--sentence_objective=none", dynamic=True)
    pairs = str(corpus / "pairs.tfrecord")
    files = RecordFiles([single, pairs])
    assert dynamic_masking.sentence_objectives(files) == ("sop", "none")
    masks = dynamic_masking.dynamic_masking(files, LENGTH, SETTINGS, 3)
    assert masks.swap_prob == 0.5
    task = PretrainingTask(LENGTH, 5, masks, some_have_no_pair=True)
    for packed in (0, 1):
        batch = next(iter(tf_dataset.dataset(
            numpy_batches.train_batches, files, masks.feature_spec(), batch_size=64, vocab_size=55, seed=3,
            packed_rows=packed * LENGTH,
        )))
        is_pair = task._ordered(batch).numpy()
        assert 5 < is_pair.sum() < 59  # both occur
        assert is_pair.sum() + 1e-5 == pytest.approx(
            float(task.loss_weights(batch)["sentence_order"]))
        labels = batch["next_sentence_labels"][:, 0].numpy()
        assert 0 < labels[is_pair == 1].mean() < 1 and not labels[is_pair == 0].any()


def test_two_objectives_cannot_be_learned_at_once(corpus, tmp_path, capsys):
    other = make(corpus, "nsp-among", "--nostatic_masks", "--sentence_objective=nsp", dynamic=True)
    more = (f"--input_file={other},{corpus / 'pairs.tfrecord'}", "--masked_lm_budget=0.2")
    assert 2 == command(*job(corpus, tmp_path, *more))
    assert "was made with --sentence_objective=" in capsys.readouterr().err


@pytest.mark.parametrize("more,said", [
    ([], "holds pairs without masks: pass --masked_lm_budget=0.15"),
    (["--masked_lm_budget=2"], "--masked_lm_budget=2: 2.0 is not a number in the range [0, 1]"),
    (["--masked_lm_budget=0.2", "--ngram=33"], "--ngram=33: 33 is not an integer in the range [1, 32]"),
    (["--ngram=2"], "--ngram has no effect without --masked_lm_budget"),
    (["--masked_lm_budget=0.2", "--input_file={corpus}/static.tfrecord"],
     "was not made with --nostatic_masks"),
    (["--masked_lm_budget=0.2", "--input_file={corpus}/static.tfrecord,{corpus}/pairs.tfrecord"],
     "they cannot be read together"),
])
def test_records_that_do_not_fit_the_flags_are_refused(corpus, tmp_path, more, said, capsys):
    more = [flag.format(corpus=corpus) for flag in more]
    assert 2 == command(*job(corpus, tmp_path, *more))
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_masking_flags_of_the_wrong_command_are_refused(corpus, capsys):
    assert 2 == run_here(
        create_pretraining_data, f"--input_file={corpus / 'corpus.txt'}",
        f"--output_file={corpus / 'no.tfrecord'}", f"--vocab_file={corpus / 'vocab.txt'}",
        "--nostatic_masks", "--ngram=2", "--random_next_sentence", "--sentence_objective=sop",
    )
    assert not (corpus / "no.tfrecord").exists()
    said = capsys.readouterr().err
    assert "--ngram has no effect with --nostatic_masks" in said
    assert "--random_next_sentence contradicts --sentence_objective=sop" in said

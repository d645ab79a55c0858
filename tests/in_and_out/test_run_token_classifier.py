"""run_token_classifier: named entities are learned, predicted and scored."""

import jobs
import numpy as np
import pytest
from helpers import assert_one_clear_line, results_of, write_config

from albert.tasks.words import entity_scores, find_entities

FIRST, LAST = [f"n{i}" for i in range(8)], [f"m{i}" for i in range(8)]
OTHERS = [f"w{i}" for i in range(18)]
VOCABULARY = [*jobs.SPECIALS, ".", *FIRST, *LAST, *OTHERS]


def sentence(rng, parts):
    """First names, half of them with a last name, among other words; in upper case, which is the same."""
    lines = []
    for word in rng.choice([*FIRST, *OTHERS], parts):
        lines.append(f"{str(word).upper()} x {'B-PER' if word in FIRST else 'O'}\n")
        if word in FIRST and rng.random() < 0.5:
            lines.append(f"{rng.choice(LAST)} x I-PER\n")
    return "".join(lines) + ". x O\n\n"


def write_conll(folder):
    rng = np.random.default_rng(4)
    # Some sentences are longer than a sequence.
    for split, count in (("train", 60), ("dev", 12), ("test", 7)):
        text = "".join(sentence(rng, 4 + 60 * (i % 6 == 0)) for i in range(count))
        if split == "test":  # with entities that cannot be found
            text += "w1 x B-PER\nw2 x I-PER\n. x O\n\n"
        (folder / f"{split}.txt").write_text("-DOCSTART- x O\n\n" + text)


def flags_of(folder):
    flags = jobs.token_flags(
        folder, max_seq_length=40, classifier_dropout=0, albert_dropout=0, learning_rate=0.005,
        train_step=60, warmup_step=6, save_checkpoints_steps=30, train_batch_size=16,
    )
    write_conll(folder)
    write_config(folder, max_position_embeddings=48, num_hidden_layers=1)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    return flags


@pytest.fixture(scope="module")
def trained(run_once):
    return run_once("names", jobs.label_words, flags_of, "--do_train", "--do_eval", "--do_predict")


def test_names_are_learned_and_every_word_predicted_as_the_results_say(trained):
    out = trained.out
    found = results_of(out)
    assert found["eval_f1"] > 0.8 and found["eval_accuracy"] > 0.9
    assert found["eval_f1_PER"] == found["eval_f1"]
    given = (out.parent / "test.txt").read_text().splitlines()
    written = (out / "test_predictions.txt").read_text().splitlines()
    assert [line.rsplit(" ", 1)[0] if line else "" for line in written] == given
    words = [line.split() for line in filter(None, written[2:])]
    gold, guessed = [word[-2] for word in words], [word[-1] for word in words]
    found = results_of(out, "predict_results")
    hits = np.mean([a == b for a, b in zip(gold, guessed, strict=True)])
    assert found["eval_accuracy"] == pytest.approx(hits) and hits < 1
    # The "." of every sentence is outside entities, so that concatenated sentences score the same.
    assert found["eval_f1"] == pytest.approx(entity_scores(gold, guessed)["eval_f1"])


def test_predict_labels_words_as_in_the_file_and_tells_entities_with_their_places(trained, tmp_path):
    sentences = [
        [line.split() for line in group.splitlines()]
        for group in (trained.out / "test_predictions.txt").read_text().split("\n\n") if group
    ][1:]
    lines = [" ".join(row[0] for row in one) for one in sentences]
    answers = jobs.ask(tmp_path, trained.out, [*lines, " "], "--is_tokenized")
    for one, answer in zip(sentences, answers[:-1], strict=True):
        assert answer["words"] == [row[0] for row in one]
        assert answer["labels"] == [row[-1] for row in one]
        assert len(answer["probabilities"]) == len(one) and min(answer["probabilities"]) > 1 / 3
    assert answers[-1] == {"words": [], "labels": [], "probabilities": [], "entities": []}
    text = "W1.  N3 M2. N1 M1 N2, N5."  # punctuation is separate
    (raw,) = jobs.ask(tmp_path, trained.out, [text])
    assert raw["words"] == ["W1", ".", "N3", "M2", ".", "N1", "M1", "N2", ",", "N5", "."]
    expected = find_entities(raw["labels"])
    assert len(expected) > 1
    for entity, (kind, first, last) in zip(raw["entities"], expected, strict=True):
        assert entity["type"] == kind
        assert entity["text"].replace(" ", "") == "".join(raw["words"][first : last + 1])
        assert text[entity["start"] : entity["end"]] == entity["text"]


def test_what_is_not_trained_takes_the_labels_of_the_checkpoint(trained, tmp_path, capsys):
    flags = [*trained.flags, f"--data_dir={tmp_path}", f"--output_dir={tmp_path}/out",
             f"--checkpoint={trained.out}"]
    # A file with fewer labels than in training, and one with none.
    (tmp_path / "dev.txt").write_text("n1 O\nw1 O\n")
    (tmp_path / "test.txt").write_text("n1\nw2\n\nw3\n")
    assert jobs.label_words(*flags, "--do_eval", "--do_predict") == 0
    assert results_of(tmp_path / "out")["eval_precision"] == 0.0
    written = (tmp_path / "out/test_predictions.txt").read_text()
    assert written == "n1 B-PER\nw2 O\n\nw3 O\n"
    assert not (tmp_path / "out/predict_results.json").exists()
    capsys.readouterr()
    for labels, message in (
        ("B-PER,I-PER", "dev.txt:1: label 'O' is not one of B-PER, I-PER"),
        ("O,I-PER,B-PER", "was trained with another label_list (['O', 'B-PER', 'I-PER'], not"),
    ):
        assert jobs.label_words(*flags, "--do_eval", f"--label_list={labels}") == 2
        assert message in assert_one_clear_line(capsys.readouterr().err)


def test_word_classes_are_judged_by_accuracy_and_long_sentences_split(tmp_path, capsys, begin):
    flags = jobs.token_flags(tmp_path, train_step=2, train_batch_size=2, max_seq_length=6, warmup_step=0)
    for split in ("train", "dev"):
        (tmp_path / f"{split}.txt").write_text("w2 NN\n. ,\nw2 NN\nw3 NN\n. ,\n\nw1 VB\n" * 4)
    (task, *_), options = begin(
        jobs.label_words, *flags, "--scheme=none", "--do_train", "--do_eval")
    assert "sentences longer than --max_seq_length=6, split into windows: " in capsys.readouterr().err
    assert task.best_metric == "eval_accuracy" and task.score({}) == {}
    assert options["flags"]["conditions"]["label_list"] == [",", "NN", "VB"]

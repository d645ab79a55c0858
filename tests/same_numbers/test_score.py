"""Scores of sentences: against a plain loop, against transformers, and on minimal pairs."""

import json
import zipfile

import apart
import keras
import numpy as np
import pytest
import their_transformers
from helpers import (
    LENGTH,
    PREDICTIONS,
    SIZES,
    assert_one_clear_line,
    metrics,
    run,
    run_here,
    write_config,
    write_pretraining_records,
)

import albert
from albert import modeling, score
from albert.errors import DataError
from albert.inference import scoring
from albert.tasks import minimal_pairs

PIECES = [f"w{i}" for i in range(20)] + ["##s", "##ed", "."]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]
CONFIG = modeling.AlbertConfig(
    **SIZES | {"vocab_size": len(VOCAB), "initializer_range": 0.4, "max_position_embeddings": 32}
)
TEXTS = ["w1 w2s w3ed.", "w4", "w5s w6 w7 w8 w9 w10 w11.", "W1 w2S unheard w3ed."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    albert.AlbertForPreTraining(CONFIG).save_pretrained(str(folder))
    (folder / "vocab.txt").write_text("\n".join(VOCAB))
    return folder


def plain(model, tokenizer, text: str, within_words: bool) -> float:
    """The definition, one row at a time."""
    ids = tokenizer.encode(text)[1:-1]
    pieces = tokenizer.convert_ids_to_tokens(ids)
    total = 0.0
    for place in range(len(ids)):
        masked = list(ids)
        masked[place] = tokenizer.mask_token_id
        if within_words:
            for later in range(place + 1, len(ids)):
                if not pieces[later].startswith("##"):
                    break
                masked[later] = tokenizer.mask_token_id
        row = np.array([[tokenizer.cls_token_id, *masked, tokenizer.sep_token_id]])
        logits = np.asarray(model({"input_ids": row})["prediction_logits"], np.float64)[0, 1 + place]
        shifted = logits - logits.max()
        total += shifted[ids[place]] - np.log(np.exp(shifted).sum())
    return total


@pytest.mark.parametrize("within_words", [False, True])
def test_a_score_is_that_of_a_plain_loop(within_words, folder):
    model = albert.AlbertForMaskedLM.from_pretrained(str(folder))
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(folder))
    session = albert.open_session(str(folder), batch_size=4)
    found = list(session.score(TEXTS, within_words=within_words))
    expected = [plain(model, tokenizer, text, within_words) for text in TEXTS]
    np.testing.assert_allclose([one["log_probability"] for one in found], expected, atol=1e-4)
    assert [one["pieces"] for one in found] == [6, 1, 9, 7]
    alone = session.score(TEXTS[0], within_words=within_words)
    assert alone["log_probability"] == pytest.approx(found[0]["log_probability"], abs=1e-5)


def test_both_scorings_differ_on_words_of_several_pieces_alone(folder):
    session = albert.open_session(str(folder))
    for text, is_equal in (("w1 w2.", True), ("w1 w2s.", False)):
        a, b = (session.score(text, within_words=w)["log_probability"] for w in (False, True))
        assert (a == pytest.approx(b, abs=1e-6)) == is_equal


def test_a_text_that_does_not_fit_is_named(folder):
    session = albert.open_session(str(folder), max_seq_length=6)
    with pytest.raises(DataError, match="text 2: 9 tokens, at most 4 fit"):
        list(session.score(["w4", TEXTS[2]]))
    assert session.score(" ") == {"log_probability": 0.0, "pieces": 0}


def test_scorers_of_several_models_on_one_session_keep_apart(folder):
    session = albert.open_session(str(folder))
    own = session.score("w4 w5")["log_probability"]
    other = scoring.SentenceScorer(session, model=modeling.AlbertForMaskedLM(CONFIG))
    assert next(other.predict([("w4 w5", "")]))["log_probability"] != pytest.approx(own, abs=1e-3)
    assert session.score("w4 w5")["log_probability"] == own


def test_words_of_sentencepiece_begin_with_its_underline(golden_path):
    from albert.tokenization import FullTokenizer

    tokenizer = FullTokenizer(None, spm_model_file=str(golden_path("spm/30k-clean.model")))
    ids = tokenizer.encode_text("the unbelievableness of it.")
    pieces = tokenizer.convert_ids_to_tokens(ids)
    ends = scoring.word_ends(tokenizer, ids)
    for place, end in enumerate(ends):
        assert not any(piece.startswith("\u2581") for piece in pieces[place + 1 : end])
        assert end == len(pieces) or pieces[end].startswith("\u2581")
    [value] = scoring.unigram_scores(tokenizer, ["the unbelievableness of it."])
    assert value == pytest.approx(sum(tokenizer.sp_model.GetScore(i) for i in ids), rel=1e-6)


# --- Minimal pairs ---


def write_pairs(path, paradigm: str, count: int, term: str = "agreement"):
    lines = [
        json.dumps({"sentence_good": f"w{i} w1s.", "sentence_bad": f"w{i} w1ed.",
                    "UID": paradigm, "linguistics_term": term})
        for i in range(count)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_accuracies_are_means_of_paradigms_and_ties_count_half():
    pairs = [minimal_pairs.Pair("a", "b", name, term) for name, term in
             (("x", "t"), ("x", "t"), ("x", "t"), ("x", "t"), ("y", "t"), ("z", "u"))]
    found = minimal_pairs.accuracies(pairs, [2, 2, 2, 0, 1, 3], [1, 1, 2, 1, 2, 1])
    assert found["paradigms"]["x"] == {
        "accuracy": 2.5 / 4, "pairs": 4, "ties": 1, "phenomenon": "t"
    }
    assert found["accuracy"] == pytest.approx((2.5 / 4 + 0 + 1) / 3)
    assert found["phenomena"] == {"t": pytest.approx(2.5 / 8), "u": 1.0}
    assert (found["pairs"], found["ties"]) == (6, 1)
    # Of x: the variance of (1, 1, 0.5, 0) over four pairs; of the others none.
    assert found["standard_error"] == pytest.approx((np.var([1, 1, 0.5, 0]) / 4) ** 0.5 / 3)


def test_pairs_are_read_from_files_folders_and_archives(tmp_path):
    a = write_pairs(tmp_path / "a.jsonl", "a", 5)
    write_pairs(tmp_path / "b.jsonl", "b", 3)
    assert len(minimal_pairs.read_pairs(str(a))) == 5
    assert [p.paradigm for p in minimal_pairs.read_pairs(str(tmp_path), 2)] == list("aabb")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(a, "data/a.jsonl")
        archive.writestr("__MACOSX/data/._a.jsonl", b"\x00\x05")
    assert minimal_pairs.read_pairs(str(tmp_path / "all.zip")) == minimal_pairs.read_pairs(str(a))


@pytest.mark.parametrize("content, message", [
    ('{"sentence_good": "a"}\n', "p.jsonl:1: sentence_good and sentence_bad must be texts"),
    ('\n{"sentence_good": \n', "p.jsonl:2: not a JSON object"), ("[1]\n", "expected a JSON object"),
    ("", "no pairs in"), ("\xff\n", "not UTF-8"),
])
def test_what_is_no_pair_is_refused(content, message, tmp_path):
    (tmp_path / "p.jsonl").write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        minimal_pairs.read_pairs(str(tmp_path / "p.jsonl"))
    (tmp_path / "p.zip").write_bytes(b"PK no zip")
    with pytest.raises(DataError, match="is damaged"):
        minimal_pairs.read_pairs(str(tmp_path / "p.zip"))


def test_the_command_tells_the_model_beside_random_weights(folder, tmp_path):
    write_pairs(tmp_path / "a.jsonl", "a", 30)
    out = tmp_path / "scores.json"
    done = run("albert.score", f"--model={folder}", f"--pairs_file={tmp_path}",
               "--pairs_per_paradigm=25", f"--output_file={out}")
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    session = albert.open_session(str(folder))
    values = [
        [one["log_probability"] for one in session.score([f"w{i} w1{end}." for i in range(25)])]
        for end in ("s", "ed")
    ]
    expected = np.mean(np.array(values[0]) > np.array(values[1]))
    assert told["accuracy"] == pytest.approx(expected) and told["pairs"] == 25
    assert told["random weights"]["pairs"] == score.UNTRAINED_PAIRS
    keras.utils.set_random_seed(1)
    untrained, tokenizer = modeling.AlbertForMaskedLM(CONFIG), session.tokenizer
    bare = albert.AlbertTokenizer(tokenizer, 32)
    preferred = [
        plain(untrained, bare, f"w{i} w1s.", False) > plain(untrained, bare, f"w{i} w1ed.", False)
        for i in range(score.UNTRAINED_PAIRS)
    ]
    assert told["random weights"]["accuracy"] == pytest.approx(np.mean(preferred))
    assert "frequencies of pieces" not in told  # a WordPiece vocabulary has none
    assert f"accuracy {expected:.4f}" in done.stderr


def test_the_command_scores_lines(folder, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    done = run("albert.score", f"--model={folder}", f"--input_file={tmp_path / 'in.txt'}")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    expected = list(albert.open_session(str(folder)).score(TEXTS))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == {"log_probability": pytest.approx(theirs["log_probability"], abs=1e-4),
                        "pieces": theirs["pieces"]}
    refused = run("albert.score", f"--model={folder}", "--pairs_per_paradigm=3")
    assert refused.returncode == 2
    assert "goes with --pairs_file" in assert_one_clear_line(refused.stderr)


def test_an_empty_line_scores_0_and_the_other_lines_keep_their_places(folder, tmp_path):
    (tmp_path / "in.txt").write_text(f"{TEXTS[0]}\n\n{TEXTS[1]}\n \n")
    assert run_here(score, f"--model={folder}", f"--input_file={tmp_path / 'in.txt'}",
                    f"--output_file={tmp_path / 'out.jsonl'}") == 0
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [one["pieces"] for one in found] == [6, 0, 1, 0]
    assert found[1] == {"log_probability": 0.0, "pieces": 0}
    [expected] = albert.open_session(str(folder)).score(TEXTS[1:2])
    assert found[2]["log_probability"] == pytest.approx(expected["log_probability"], abs=1e-4)


def test_a_line_that_is_too_long_is_refused_before_anything_is_computed(folder, tmp_path, capsys):
    (tmp_path / "in.txt").write_text(f"{TEXTS[1]}\n" * 300 + "w1 " * 40)
    assert run_here(score, f"--model={folder}", f"--input_file={tmp_path / 'in.txt'}") == 2
    printed = capsys.readouterr()
    assert "in.txt:301: 40 tokens, at most 30 fit" in assert_one_clear_line(printed.err)
    assert printed.out == ""


def test_a_score_is_that_of_transformers(folder, tmp_path):
    apart.needs("torch", "transformers", extra="interop")
    done = run("albert.convert_hf", f"--albert_directory={folder}", f"--output_dir={tmp_path / 'hf'}")
    assert done.returncode == 0, done.stderr
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(folder))
    ids = [tokenizer.encode(text) for text in TEXTS]
    with apart.process() as call:
        expected = call(
            their_transformers.pseudo_log_likelihoods, str(tmp_path / "hf"), ids,
            tokenizer.mask_token_id,
        )
    found = [one["log_probability"] for one in albert.open_session(str(folder)).score(TEXTS)]
    np.testing.assert_allclose(found, expected, atol=1e-4)


# --- Along a training ---


def test_a_run_tells_how_its_model_prefers_pairs(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*VOCAB, *(f"x{i}" for i in range(40 - len(VOCAB)))]))
    config = write_config(folder, vocab_size=40, max_position_embeddings=32)
    records = write_pretraining_records(folder / "records.tfrecord", 16)
    write_pairs(folder / "pairs.jsonl", "a", 12)
    job = [
        f"--albert_config_file={config}", f"--input_file={records}", "--do_train", "--do_eval",
        f"--output_dir={tmp_path / 'out'}", f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={PREDICTIONS}", "--train_batch_size=4", "--eval_batch_size=4",
        "--max_eval_steps=1", "--num_train_steps=4", "--num_warmup_steps=1",
        "--save_checkpoints_steps=2", "--learning_rate=0.01", "--depth_schedule=1:2",
    ]
    pairs = [f"--eval_pairs={folder / 'pairs.jsonl'}", f"--vocab_file={folder / 'vocab.txt'}"]
    done = run("albert.run_pretraining", *job, *pairs)
    assert done.returncode == 0, done.stderr
    told = [line["pairs_accuracy"] for line in metrics(tmp_path / "out") if line["kind"] == "eval"]
    assert len(told) == 2
    session = albert.open_session(
        str(tmp_path / "out/model.ckpt-4"), vocab_file=str(folder / "vocab.txt")
    )
    good, bad = (
        [one["log_probability"] for one in session.score([f"w{i} w1{end}." for i in range(12)])]
        for end in ("s", "ed")
    )
    assert told[1] == pytest.approx(np.mean(np.array(good) > np.array(bad)))
    results = json.loads((tmp_path / "out/eval_results.json").read_text())
    assert results["pairs_accuracy"] == told[1]
    refused = run("albert.run_pretraining", *job, "--eval_pairs_per_paradigm=3")
    assert refused.returncode == 2
    assert "--eval_pairs_per_paradigm goes with --eval_pairs" in assert_one_clear_line(refused.stderr)

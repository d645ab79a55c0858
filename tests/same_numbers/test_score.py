"""Sentence scores: compared with a plain loop and with transformers, and on minimal pairs."""

import json
import zipfile

import apart
import jobs
import keras
import numpy as np
import pytest
import their_transformers
from helpers import SIZES, run_here

import albert
from albert import convert_hf, modeling

blimp = jobs.script("blimp", "scripts")
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


@pytest.fixture(scope="module")
def session(folder):
    return albert.open_session(str(folder), batch_size=4)


def scores_of(session, **options):
    """Returns a function from texts to their scores."""
    return lambda texts: [one["log_probability"] for one in answers_of(session, texts, **options)]


def answers_of(session, texts, **options):
    """Returns the answers of the script's scorer."""
    inputs = [(text, f"text {number}") for number, text in enumerate(texts, 1)]
    return list(blimp.Scorer(session, **options).predict(inputs))


def plain(model, tokenizer, text: str, within_words: bool) -> float:
    """The definition: one sequence per token, in which that token is masked."""
    ids = tokenizer.encode(text)
    rows, tokens = [], tokenizer.convert_ids_to_tokens(ids)
    for position in range(1, len(ids) - 1):
        last = position + 1
        while within_words and tokens[last].startswith("##"):
            last += 1
        rows.append([*ids[:position], *[tokenizer.mask_token_id] * (last - position), *ids[last:]])
    logits = np.asarray(model({"input_ids": np.array(rows)})["prediction_logits"], np.float64)
    return sum(
        of_row[position, ids[position]] - np.log(np.exp(of_row[position]).sum())
        for position, of_row in enumerate(logits, 1)
    )


def test_a_score_is_that_of_a_plain_loop(folder, session):
    model = albert.AlbertForMaskedLM.from_pretrained(str(folder))
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(folder))
    assert [one["tokens"] for one in answers_of(session, TEXTS)] == [6, 1, 9, 7]
    found = scores_of(session)(TEXTS)
    for within_words, scores in ((False, found), (True, scores_of(session, within_words=True)(TEXTS))):
        expected = [plain(model, tokenizer, text, within_words) for text in TEXTS]
        np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert answers_of(session, [" "]) == [{"log_probability": 0.0, "tokens": 0}]


def test_words_of_sentencepiece_begin_with_its_underline(golden_path):
    from albert.tokenization import FullTokenizer

    tokenizer = FullTokenizer(None, spm_model_file=str(golden_path("spm/30k-clean.model")))
    ids = tokenizer.encode_text("the unbelievableness of it.")
    pieces = tokenizer.convert_ids_to_tokens(ids)
    ends = blimp.word_ends(tokenizer, ids)
    for place, end in enumerate(ends):
        assert not any(piece.startswith("\u2581") for piece in pieces[place + 1 : end])
        assert end == len(pieces) or pieces[end].startswith("\u2581")


# --- Minimal pairs ---


def write_pairs(path, paradigm: str, count: int):
    path.write_text("".join(json.dumps({
        "sentence_good": f"w{i} w1s.", "sentence_bad": f"w{i} w1ed.", "UID": paradigm,
        "linguistics_term": "agreement",
    }) + "\n" for i in range(count)))
    return path


def test_accuracies_are_means_of_paradigms_and_ties_count_half():
    pairs = [blimp.Pair("a", "b", *names) for names in ("xt", "xt", "xt", "xt", "yt", "zu")]
    found = blimp.accuracies(pairs, [2, 2, 2, 0, 1, 3], [1, 1, 2, 1, 2, 1])
    of_x = {"accuracy": 2.5 / 4, "pairs": 4, "ties": 1, "phenomenon": "t"}
    assert found["paradigms"]["x"] == of_x
    assert found["accuracy"] == pytest.approx((2.5 / 4 + 0 + 1) / 3)
    assert found["phenomena"] == {"t": pytest.approx(2.5 / 8), "u": 1.0}
    assert (found["pairs"], found["ties"]) == (6, 1)
    # For x: the variance of (1, 1, 0.5, 0) over four pairs; none for the others.
    assert found["standard_error"] == pytest.approx((np.var([1, 1, 0.5, 0]) / 4) ** 0.5 / 3)


def preferred(session, count: int) -> float:
    """Returns the fraction of pairs whose good text has the higher score."""
    good, bad = (scores_of(session)([f"w{i} w1{end}." for i in range(count)]) for end in ("s", "ed"))
    return np.mean(np.greater(good, bad))


def test_the_command_scores_pairs_of_files_and_archives_beside_random_weights(
    folder, session, tmp_path, caplog
):
    write_pairs(tmp_path / "b.jsonl", "b", 3)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(write_pairs(tmp_path / "a.jsonl", "a", 30), "data/a.jsonl")
        archive.writestr("__MACOSX/data/._a.jsonl", b"\x00\x05")
    pairs = blimp.read_pairs(str(tmp_path / "all.zip"))
    assert pairs == blimp.read_pairs(str(tmp_path / "a.jsonl"))
    assert [pair.paradigm for pair in blimp.read_pairs(str(tmp_path), 2)] == list("aabb")
    out = tmp_path / "scores.json"
    with caplog.at_level("INFO", "albert"):
        assert run_here(blimp, f"--model={folder}", f"--pairs_file={tmp_path / 'all.zip'}",
                        "--pairs_per_paradigm=25", f"--output_file={out}") == 0
    found, expected = json.loads(out.read_text()), preferred(session, 25)
    assert found["accuracy"] == pytest.approx(expected) and found["pairs"] == 25
    assert f"accuracy {expected:.4f}" in caplog.text
    keras.utils.set_random_seed(1)
    modeling.AlbertForMaskedLM(CONFIG).save_pretrained(str(tmp_path / "random"))
    (tmp_path / "random/vocab.txt").write_text("\n".join(VOCAB))
    expected = preferred(albert.open_session(str(tmp_path / "random")), blimp.UNTRAINED_PAIRS)
    assert found["random weights"]["pairs"] == blimp.UNTRAINED_PAIRS
    assert found["random weights"]["accuracy"] == pytest.approx(expected)


def test_a_score_is_that_of_transformers(folder, session, tmp_path):
    apart.needs("torch", "transformers", extra="interop")
    assert run_here(
        convert_hf, f"--albert_directory={folder}", f"--output_dir={tmp_path / 'hf'}"
    ) == 0
    tokenizer = albert.AlbertTokenizer.from_pretrained(str(folder))
    ids = [tokenizer.encode(text) for text in TEXTS]
    with apart.process() as call:
        expected = call(
            their_transformers.pseudo_log_likelihoods, str(tmp_path / "hf"), ids,
            tokenizer.mask_token_id,
        )
    np.testing.assert_allclose(scores_of(session)(TEXTS), expected, atol=1e-4)

"""`--init_embeddings=cooccurrence`: embeddings from token co-occurrence."""

import json

import jobs
import numpy as np
import pytest
from helpers import assert_one_clear_line
from record_files_made import write_records

from albert.formats import checkpoints
from albert.pretraining_data import cooccurrence
from albert.pretraining_data.features import masked_features, pair_features
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles

LENGTH, VOCAB, SPECIAL = 12, 20, (0, 1, 2, 3, 4)


def pairs(count: int = 30) -> list[dict]:
    rng, rows = np.random.default_rng(3), []
    for _ in range(count):
        a, b = rng.integers(3, 6), rng.integers(2, 4)
        ids = np.zeros(LENGTH, np.int64)
        words = 5 + rng.integers(0, 8, a + b)  # tokens 13 to 19 do not occur
        ids[: a + b + 3] = [2, *words[:a], 3, *words[a:], 3]
        rows.append({"input_ids": ids, "token_boundary": np.ones(LENGTH, np.int64),
                     "segment_lengths": [a, b], "next_sentence_labels": [0]})
    return rows


def written(path, rows, features) -> tuple[RecordFiles, FeatureSpec]:
    spec = FeatureSpec(features, row_length=LENGTH)
    write_records(str(path), rows, spec, {})
    return RecordFiles([str(path)]), spec


def expected(rows, size: int) -> np.ndarray:
    """The formulas of Levy, Goldberg and Dagan 2015, with dense matrices."""
    counts = np.zeros((VOCAB, VOCAB))
    for ids in (row["input_ids"] for row in rows):
        for i, one in enumerate(ids):
            for j in range(i + 1, min(i + 6, LENGTH)):
                if set(ids[i : j + 1]) & set(SPECIAL):
                    break
                counts[one, ids[j]] += (1.0, 0.8, 0.6, 0.4, 0.3)[j - i - 1]
    counts += counts.T
    sums = counts.sum(1)
    context = sums**0.75 / (sums**0.75).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        ppmi = np.maximum(np.nan_to_num(np.log(counts / np.outer(sums, context)), neginf=0), 0)
    u, s, _ = np.linalg.svd(ppmi)
    return (u * np.sqrt(s))[:, :size], sums > 0


def test_vectors_have_the_products_that_ppmi_and_its_decomposition_give(tmp_path):
    rows = pairs()
    source, spec = written(tmp_path / "pairs.tfrecord", rows, pair_features(LENGTH))
    found = cooccurrence.embeddings(source, spec, SPECIAL, VOCAB, 5, seed=1)
    wanted, occurs = expected(rows, 5)
    assert found.shape == (VOCAB, 5) and np.isnan(found[~occurs]).all() and occurs.sum() == 8
    found, wanted = found[occurs], wanted[occurs] - wanted[occurs].mean(0)
    wanted *= 0.06 / wanted.std()
    # Signs and order of the columns are arbitrary; products of vectors are not.
    np.testing.assert_allclose(found @ found.T, wanted @ wanted.T, rtol=1e-3, atol=1e-6)


def test_masked_records_give_the_vectors_of_the_text_below_the_masks(tmp_path):
    plain, masked = pairs(), []
    for row in pairs():
        ids = row["input_ids"].copy()
        original, ids[2] = ids[2], 4
        masked.append({
            "input_ids": ids, "input_mask": (ids > 0).astype(int), "segment_ids": np.zeros(LENGTH, int),
            "masked_lm_positions": [2, 0], "masked_lm_ids": [original, 0],
            "masked_lm_weights": [1.0, 0.0], "next_sentence_labels": [0],
        })
    found = [
        cooccurrence.embeddings(*written(tmp_path / name, rows, features), SPECIAL, VOCAB, 4, 1)
        for name, rows, features in (("plain.tfrecord", plain, pair_features(LENGTH)),
                                     ("masked.tfrecord", masked, masked_features(LENGTH, 2)))
    ]
    np.testing.assert_array_equal(*found)


def test_tokens_that_do_not_occur_have_random_embeddings_of_the_runs_seed(tmp_path, begin):
    assert jobs.create_data(*jobs.data_flags(tmp_path)) == 0
    run = [*jobs.pretraining_flags(tmp_path, input_file=tmp_path / "out.tfrecord"),
           f"--vocab_file={jobs.write_vocabulary(tmp_path)}", "--init_embeddings=cooccurrence"]
    one, again, other = (
        begin(jobs.pretrain, *run, f"--seed={seed}")[1]["init"].read(cooccurrence.NAME) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one[1] != other[1]).all()  # [UNK], which no record has


@pytest.mark.slow
def test_pretraining_starts_with_them_and_resumes_without_counting_again(tmp_path, monkeypatch, capsys):
    assert jobs.create_data(*jobs.data_flags(tmp_path)) == 0
    vocabulary = jobs.write_vocabulary(tmp_path)
    run = [*jobs.pretraining_flags(tmp_path, num_train_steps=4, input_file=tmp_path / "out.tfrecord"),
           f"--vocab_file={vocabulary}"]
    assert jobs.pretrain(*run, "--init_embeddings=cooccurrence", "--until_step=2") == 0
    out = tmp_path / "out"
    account = json.loads((out / "warm_start.json").read_text())
    assert account["loaded"] == [cooccurrence.NAME]
    monkeypatch.setattr(cooccurrence, "embeddings", None)
    assert jobs.pretrain(*run, "--init_embeddings=cooccurrence") == 0
    assert checkpoints.list_steps(str(out))[4]
    capsys.readouterr()
    assert jobs.pretrain(*run, "--init_embeddings=cooccurrence", f"--init_checkpoint={out}") == 2
    assert "--init_embeddings" in assert_one_clear_line(capsys.readouterr().err)

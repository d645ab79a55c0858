"""Embeddings of tokens: kept where a model gets another vocabulary, or from their co-occurrence."""

import json

import jobs
import numpy as np
import pytest
from helpers import SIZES, assert_one_clear_line, run_here
from record_files_made import write_records

import albert
from albert import create_pretraining_data, modeling, tokenization
from albert.config import AlbertConfig
from albert.formats import checkpoints, pretrained
from albert.pretraining_data import cooccurrence
from albert.pretraining_data.features import masked_features, pair_features
from albert.records.examples import FeatureSpec
from albert.records.record_files import RecordFiles
from albert.text import vocabulary

extend_vocabulary = jobs.script("extend_vocabulary", "scripts")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a vocabulary of 60 tokens, and a vocabulary of 62 from another text."""
    folder, rng = tmp_path_factory.mktemp("transfer"), np.random.default_rng(0)
    for name, letters, size in (("old", "abcdef", 60), ("new", "cdefgh", 62)):
        words = ["".join(rng.choice(list(letters), 1 + i % 5)) for i in range(50)]
        text = folder / f"{name}.txt"
        text.write_text("\n".join(" ".join(rng.choice(words, 9)) for _ in range(300)) + "\n")
        model = vocabulary.train([str(text)], vocabulary.Settings(size))
        vocabulary.write(str(folder / name), model)
    model = modeling.AlbertForPreTraining(AlbertConfig(**SIZES | {"vocab_size": 60}))
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    pretrained.save(model, str(folder / "model"), tokenizers(folder)[0])
    return folder


def tokenizers(folder):
    paths = [str(folder / f"{name}.model") for name in ("old", "new")]
    return [tokenization.FullTokenizer(None, spm_model_file=path) for path in paths]


def test_shared_pieces_keep_their_rows_and_new_ones_are_means_of_old(folder):
    old, new = tokenizers(folder)
    transfer, rng = extend_vocabulary.plan(old, new), np.random.default_rng(1)
    for shape in ((60, 8), (60,)):
        table, kinds = rng.normal(size=shape).astype("float32"), set()
        found = transfer.rows(table)
        assert found.shape == (62, *shape[1:]) and found.dtype == np.float32
        for i in range(62):
            piece = new.inv_vocab[i]
            parts = old.tokenize(piece.replace("▁", " ").strip())
            known = [p for p in parts if p in old.vocab and p not in ("▁", "<unk>")]
            sources, kind = [old.vocab[p] for p in known] or slice(None), bool(known)
            if piece in old.vocab:
                sources, kind = [old.vocab[piece]], "shared"
            kinds.add(kind)
            np.testing.assert_allclose(found[i], table[sources].mean(axis=0), rtol=1e-5, atol=1e-6)
        assert kinds == {"shared", True, False}


def test_the_command_changes_the_vocabularys_tables_alone(folder, tmp_path):
    out = tmp_path / "out"
    flags = f"--model={folder / 'model'}", f"--spm_model_file={folder / 'new.model'}"
    assert run_here(extend_vocabulary, *flags, f"--output_dir={out}") == 0
    before, after = (pretrained.open_path(str(f)) for f in (folder / "model", out))
    assert after.config.vocab_size == 62
    assert after.vocabulary.spm_model_file == str(out / "spiece.model")
    old, new = before.weights(), after.weights()
    tables = {"bert/embeddings/word_embeddings", "cls/predictions/output_bias"}
    assert set(new.shapes) == set(old.shapes)
    for name in set(new.shapes) - tables:
        np.testing.assert_array_equal(new.read(name), old.read(name), err_msg=name)
    transfer = extend_vocabulary.plan(*tokenizers(folder))
    for name in tables:
        np.testing.assert_array_equal(new.read(name), transfer.rows(old.read(name)))
    assert before.vocabulary.text.do_lower_case and after.vocabulary.text.do_lower_case
    cased = tmp_path / "cased"
    assert run_here(extend_vocabulary, *flags, f"--output_dir={cased}", "--nodo_lower_case") == 0
    assert not pretrained.open_path(str(cased)).vocabulary.text.do_lower_case
    # Any command can start from it.
    albert.AlbertModel.from_pretrained(str(out))


def test_special_tokens_keep_their_rows_though_the_two_kinds_of_vocabulary_name_them_differently(
    folder, tmp_path
):
    (tmp_path / "new.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cafe"]))
    old, new = tokenizers(folder)[0], tokenization.FullTokenizer(str(tmp_path / "new.txt"))
    for one, other in ((old, new), (new, old)):
        table = np.random.default_rng(2).normal(size=(one.vocab_size, 4)).astype("float32")
        found = extend_vocabulary.plan(one, other).rows(table)
        for names in (("[PAD]", "<pad>"), ("[UNK]", "<unk>"), ("[SEP]", "[SEP]")):
            mine, theirs = (tokenizer.vocab[names[tokenizer.is_spm]] for tokenizer in (other, one))
            np.testing.assert_array_equal(found[mine], table[theirs])


CLASSES = "cat cow hen pig yak", "bites finds likes sees", "corn hay oats seed rye"
NEW = "yak", "rye"


def test_new_tokens_resemble_those_of_the_same_contexts(tmp_path, capsys):
    rng, special = np.random.default_rng(0), ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [group.split() for group in CLASSES]
    for name, added in (("old", ()), ("new", NEW)):
        known = [word for word in sum(words, []) if word not in NEW]
        (tmp_path / f"{name}.txt").write_text("\n".join((*special, *known, *added)))
    old, new = (tokenization.FullTokenizer(str(tmp_path / f"{name}.txt")) for name in ("old", "new"))
    model = modeling.AlbertForPreTraining(AlbertConfig(**SIZES | {"vocab_size": old.vocab_size}))
    table = modeling.named_weights(model)["bert/embeddings/word_embeddings"]
    values = rng.normal(size=table.shape)
    centres = rng.normal(size=(3, table.shape[1]))
    for centre, group in zip(centres, CLASSES, strict=True):
        for word in set(group.split()) - set(NEW):
            values[old.vocab[word]] = centre + rng.normal(0, 0.1, table.shape[1])
    table.assign(values)
    pretrained.save(model, str(tmp_path / "model"), old)
    text, data = tmp_path / "text", tmp_path / "text.tfrecord"
    text.write_text("\n".join(" ".join(map(rng.choice, words)) for _ in range(400)) + "\n")
    vocab = f"--vocab_file={tmp_path / 'new.txt'}"
    assert run_here(
        create_pretraining_data, f"--input_file={text}", f"--output_file={data}", vocab,
        "--max_seq_length=16", "--nostatic_masks", "--single_sentences", "--sentence_objective=none",
    ) == 0
    flags = f"--model={tmp_path / 'model'}", vocab, f"--input_file={data}"
    assert run_here(extend_vocabulary, *flags, f"--output_dir={tmp_path / 'out'}") == 0
    found = pretrained.open_path(str(tmp_path / "out")).weights().read("bert/embeddings/word_embeddings")
    is_shared = extend_vocabulary.plan(old, new).is_shared
    for word, group in zip(NEW, (0, 2), strict=True):
        i = new.vocab[word]
        assert not is_shared[i]
        assert np.argmin(np.linalg.norm(centres - found[i], axis=1)) == group
    for i in np.nonzero(is_shared)[0]:
        np.testing.assert_array_equal(found[i], values[old.vocab[new.inv_vocab[i]]].astype("float32"))

    out = tmp_path / "refused"
    for name, records, said in (
        ("old", data, "make the records with the model's vocabulary"),
        ("new", text, "no records of create_pretraining_data"),
    ):
        flags = f"--model={tmp_path / 'model'}", f"--vocab_file={tmp_path / f'{name}.txt'}"
        assert run_here(extend_vocabulary, *flags, f"--input_file={records}", f"--output_dir={out}") == 2
        assert said in capsys.readouterr().err
        assert not out.exists()


@pytest.mark.parametrize("more, said", [
    ([], "pass either --spm_model_file or --vocab_file"),
    (["--spm_model_file={f}/new.model", "--model={f}/nothing"], "no directory"),
    (["--spm_model_file={f}/new.model", "--old_spm_model_file={f}/new.model"], "vocab"),
    (["--spm_model_file={f}/new.model", "--output_dir={f}"], "exists: remove it"),
])
def test_what_cannot_be_extended_is_refused(more, said, folder, tmp_path, capsys):
    usual = [f"--model={folder / 'model'}", f"--output_dir={tmp_path / 'out'}"]
    assert run_here(extend_vocabulary, *usual, *(flag.format(f=folder) for flag in more)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- Co-occurrence ---

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

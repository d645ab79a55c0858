"""train_sentencepiece: vocabularies with the layout of the release, the same every time."""

import pathlib
import random
import subprocess

import helpers
import pytest
import sentencepiece

SPECIAL = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "(", ")", '"', "-", ".", "–", "£", "€"]


def run(*arguments: str) -> subprocess.CompletedProcess:
    return helpers.run("albert.train_sentencepiece", *arguments)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> pathlib.Path:
    rng = random.Random(3)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    vocabulary = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(400)]
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    lines = (" ".join(rng.choices(vocabulary, k=12)) for _ in range(1500))
    path.write_text("".join(f"Été {line.capitalize()}.\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory) -> pathlib.Path:
    prefix = tmp_path_factory.mktemp("spm") / "spm"
    result = run(f"--input={text}", f"--model_prefix={prefix}", "--vocab_size=200")
    assert result.returncode == 0, result.stderr
    return prefix


def load(prefix: pathlib.Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")


def test_special_pieces_have_the_ids_of_the_release(trained):
    model = load(trained)
    assert [model.id_to_piece(i) for i in range(len(SPECIAL))] == SPECIAL
    assert model.bos_id() == model.eos_id() == -1
    assert model.vocab_size() == 200


def test_layout_is_that_of_the_released_model(golden_path):
    released = sentencepiece.SentencePieceProcessor(
        model_file=str(golden_path("spm/30k-clean.model"))
    )
    assert [released.id_to_piece(i) for i in range(len(SPECIAL))] == SPECIAL


def test_vocab_file_lists_the_pieces_in_id_order(trained):
    model = load(trained)
    lines = pathlib.Path(f"{trained}.vocab").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines] == [
        model.id_to_piece(i) for i in range(model.vocab_size())
    ]


def test_control_symbols_are_not_found_in_text(trained):
    assert not {2, 3, 4} & set(load(trained).encode("[CLS] bada [SEP] [MASK]"))


def test_text_is_lower_cased_and_loses_accents_unless_told_otherwise(text, trained, tmp_path):
    pieces = {load(trained).id_to_piece(i) for i in range(len(SPECIAL), 200)}
    assert not any("é" in p or p != p.lower() for p in pieces)
    run(f"--input={text}", f"--model_prefix={tmp_path / 'cased'}", "--vocab_size=200",
        "--nodo_lower_case")
    cased = load(tmp_path / "cased")
    assert any(piece != piece.lower() for piece in map(cased.id_to_piece, range(5, 200)))


def test_same_text_same_file(text, trained, tmp_path):
    run(f"--input={text}", f"--model_prefix={tmp_path / 'again'}", "--vocab_size=200")
    assert (tmp_path / "again.model").read_bytes() == trained.with_suffix(".model").read_bytes()


def test_sampling_follows_the_seed(text, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        result = run(f"--input={text}", f"--model_prefix={tmp_path / name}", "--vocab_size=150",
                     "--input_sentence_size=300", f"--seed={seed}")
        assert result.returncode == 0, result.stderr
    models = {name: (tmp_path / f"{name}.model").read_bytes() for name in "abc"}
    assert models["a"] == models["b"] != models["c"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocab_size=100000"], "is too large for"),
        (["--vocab_size=20"], "use at least"),
        (["--vocab_size=13"], "--vocab_size=13: must be a whole number, above 13"),
        (["--character_coverage=1.5"], "must be a number, from 0.98 to 1"),
        (["--character_coverage=0.97"], "must be a number, from 0.98 to 1"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_one_clear_line(text, tmp_path, arguments, message):
    result = run(f"--input={text}", f"--model_prefix={tmp_path / 'spm'}", *arguments)
    assert result.returncode == 2
    assert [line for line in result.stderr.splitlines() if "error:" in line and message in line]
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_largest_size_that_the_error_names_is_possible(text, tmp_path):
    prefix = f"--model_prefix={tmp_path / 'spm'}"
    error = run(f"--input={text}", prefix, "--vocab_size=100000").stderr
    largest = error.rsplit("largest possible is ", 1)[1].strip()
    assert run(f"--input={text}", prefix, f"--vocab_size={largest}").returncode == 0


@pytest.mark.parametrize("option", ["--shuffle_input_sentence", "--noshuffle_input_sentence",
                                    "--input_sentence_size=0"])
def test_text_that_is_not_utf8_is_one_line(tmp_path, option):
    (tmp_path / "in.txt").write_bytes("café\n".encode("latin-1") * 50)
    result = run(f"--input={tmp_path / 'in.txt'}", f"--model_prefix={tmp_path / 'spm'}", option)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"error: {tmp_path / 'in.txt'}:1: not UTF-8 text")


@pytest.mark.parametrize("content", [None, b"", b" \n\n"])
def test_missing_or_empty_text_is_one_line(tmp_path, content):
    if content is not None:
        (tmp_path / "in.txt").write_bytes(content)
    result = run(f"--input={tmp_path / 'in.txt'}", f"--model_prefix={tmp_path / 'spm'}")
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "in.txt" in result.stderr

"""train_sentencepiece: vocabularies with the layout of the release, the same every time."""

import pathlib
import random
import subprocess
import sys

import pytest
import sentencepiece
from helpers import REPO, assert_one_clear_line, run_here

from albert import train_sentencepiece

SPECIAL = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "(", ")", '"', "-", ".", "–", "£", "€"]


def train(text, prefix, *flags: str) -> int:
    return run_here(train_sentencepiece, f"--input={text}", f"--model_prefix={prefix}", *flags)


def load(path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def tokens_of(path) -> list[str]:
    model = load(path)
    return [model.id_to_piece(i) for i in range(model.vocab_size())]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> pathlib.Path:
    rng = random.Random(3)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    vocabulary = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(200)]
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    lines = (" ".join(rng.choices(vocabulary, k=12)) for _ in range(400))
    path.write_text("".join(f"Été {line.capitalize()}.\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory) -> pathlib.Path:
    prefix = tmp_path_factory.mktemp("spm") / "spm"
    assert train(text, prefix, "--vocab_size=150") == 0
    return prefix.with_suffix(".model")


def test_special_tokens_have_the_ids_of_the_release_and_are_not_found_in_text(
    trained, golden_path
):
    tokens, model = tokens_of(trained), load(trained)
    released = tokens_of(golden_path("spm/30k-clean.model"))
    assert tokens[: len(SPECIAL)] == SPECIAL == released[: len(SPECIAL)]
    assert len(tokens) == 150 and model.bos_id() == model.eos_id() == -1
    assert not {2, 3, 4} & set(model.encode("[CLS] bada [SEP] [MASK]"))
    lines = trained.with_suffix(".vocab").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines] == tokens


def test_text_is_lower_cased_unless_told_otherwise_and_loses_accents(text, trained, tmp_path):
    assert train(text, tmp_path / "cased", "--vocab_size=150", "--nodo_lower_case") == 0
    for path, is_lower in ((trained, True), (tmp_path / "cased.model", False)):
        letters = "".join(tokens_of(path)[len(SPECIAL) :])
        assert "é" not in letters and "É" not in letters
        assert (letters == letters.lower()) == is_lower


def test_the_same_text_and_seed_give_the_same_file(text, trained, tmp_path):
    assert train(text, tmp_path / "again", "--vocab_size=150") == 0
    assert (tmp_path / "again.model").read_bytes() == trained.read_bytes()
    sample = "--vocab_size=120", "--input_sentence_size=200"
    for name, *flags in (
        ("a", "--seed=1"), ("b", "--seed=1"), ("c", "--seed=2"), ("d", "--noshuffle_input_sentence"),
    ):
        assert train(text, tmp_path / name, *sample, *flags) == 0
    (tmp_path / "beginning").write_text("".join(text.read_text().splitlines(True)[:200]))
    assert train(tmp_path / "beginning", tmp_path / "e", *sample) == 0
    a, b, c, d, e = ((tmp_path / f"{name}.model").read_bytes() for name in "abcde")
    assert a == b and d == e and len({a, c, d}) == 3


def test_a_vocabulary_that_does_not_fit_is_one_clear_line(text, tmp_path, capsys):
    for flag, said in (
        ("--vocab_size=20", "use at least"),
        ("--vocab_size=13", "--vocab_size=13: 13 is not integer >= 14"),
        ("--character_coverage=1.5", "is not a number in the range [0.98, 1"),
        ("--character_coverage=0.97", "is not a number in the range [0.98, 1"),
        ("--vocab_size=100000", "is too large for"),
    ):
        assert train(text, tmp_path / "spm", flag) == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        assert said in line and not list(tmp_path.iterdir())
    # The largest size that the message names is possible.
    largest = line.rsplit("largest possible is ", 1)[1].strip()
    assert train(text, tmp_path / "spm", f"--vocab_size={largest}") == 0


def test_text_that_is_missing_empty_or_not_utf8_is_one_clear_line(tmp_path, capsys):
    path, latin1 = tmp_path / "in.txt", "café\n".encode("latin-1") * 50
    for content, *flags in (
        (None,), (b"",), (b" \n\n",), (latin1, "--noshuffle_input_sentence"),
        (latin1, "--input_sentence_size=0"), (latin1,), (b"a b " * 1200,),
    ):
        if content is not None:
            path.write_bytes(content)
        assert train(path, tmp_path / "spm", *flags) == 2
        line = assert_one_clear_line(capsys.readouterr().err)
        said = f"error: {path}:1: not UTF-8 text" if content == latin1 else "in.txt"
        assert said in line and (b"a b" not in (content or b"")) != ("every line has more than" in line)


# With 14 MB more than it has, the command starts one thread of 8 MB, and not the second that it needs.
@pytest.mark.parametrize("limit", ["200 << 20", "used + (14 << 20)"])
def test_too_little_memory_is_one_clear_line(limit, text, tmp_path):
    code = ("import resource; from albert.train_sentencepiece import cli; "
            "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize(); "
            f"resource.setrlimit(resource.RLIMIT_AS, [{limit}] * 2); cli()")
    done = subprocess.run(
        [sys.executable, "-c", code, f"--input={text}", f"--model_prefix={tmp_path}/spm", "--vocab_size=100"],
        cwd=REPO, capture_output=True, text=True, timeout=60,
    )
    assert done.returncode == 2 and not list(tmp_path.glob("spm*"))
    assert done.stderr.strip().endswith("a worker process died, perhaps for lack of memory: pass a smaller "
                                        "--input_sentence_size")

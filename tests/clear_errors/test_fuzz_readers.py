"""scripts/maintainers/fuzz_readers.py: every reader takes its seeds; without atheris it says what is missing."""

import builtins

import pytest

import jobs

SEEDS = [b"", b"{}", b"[]", b"text\tlabel\nw1\t0\n", b"\xff\xfe", b"\0" * 40, b'{"data": []}',
         b'{"article": "a", "questions": ["b"], "options": [["1","2","3","4"]], "answers": ["A"]}',
         b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nw1\n", b"\x1f\x8b\x08junk", b'{"version": "v2.0"}']


@pytest.mark.parametrize("reader", jobs.script("fuzz_readers").READERS)
def test_every_reader_answers_its_seeds(reader, tmp_path, capsys):
    paths = []
    script = jobs.script("fuzz_readers")
    sound = script.seeds(reader)
    for number, seed in enumerate([*sound, *SEEDS]):
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(seed)
    assert script.main(["fuzz_readers", reader, "--replay", *map(str, paths)]) == 0
    assert capsys.readouterr().out == f"passed: {len(SEEDS) + len(sound)} inputs\n"


def test_what_is_no_clear_error_is_let_through(tmp_path, monkeypatch):
    script = jobs.script("fuzz_readers")

    def fail(path, tokenizer):
        raise KeyError("a bug")

    monkeypatch.setitem(script.READERS, "tsv", fail)
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(KeyError):
        script.main(["fuzz_readers", "tsv", "--replay", str(tmp_path / "x")])


def test_without_atheris_the_package_is_named(monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *rest):
        if name == "atheris":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert jobs.script("fuzz_readers").main(["fuzz_readers", "tsv"]) == 2
    assert "pip install atheris" in capsys.readouterr().err

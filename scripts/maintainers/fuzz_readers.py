"""Searches for input that gives neither a result nor one clear error line.

  pip install atheris
  python scripts/maintainers/fuzz_readers.py tsv -max_total_time=600
  python scripts/maintainers/fuzz_readers.py records corpus_folder -runs=100000

Atheris tracks which code of the reader each input reaches, and mutates those that reach
more. Arguments after the reader's name go to libFuzzer (a folder of seed inputs instead of
the built-in ones, -runs, -max_total_time, -rss_limit_mb). At the first finding it writes
the input to the working directory and exits with a code other than 0;
`python scripts/maintainers/fuzz_readers.py tsv crash-...` reproduces the finding. Without
atheris, `--replay FILE...` runs given inputs through the reader.
"""

import argparse
import os
import pathlib
import sys
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "w1", "w2", "##a", ","]


def read_tsv(path: str, tokenizer) -> None:
    from albert.tasks import glue

    list(glue.read_tsv(path))


def read_race(path: str, tokenizer) -> None:
    from albert.tasks import lines, race

    for line, passage in lines.json_values(path, "data_dir"):
        race._questions_of(passage, f"{path}:{line}", "middle", "train", tokenizer)


def read_squad(path: str, tokenizer) -> None:
    from albert.tasks import squad

    for is_training in (False, True):
        questions = squad.read_questions(path, is_training)
        list(squad.make_windows(
            questions, tokenizer, max_seq_length=24, doc_stride=8, max_query_length=4
        ))


def read_records(path: str, tokenizer) -> None:
    from albert.records import tfrecord

    starts, _ = tfrecord.scan(path)
    tfrecord.read_block(path, 0, os.path.getsize(path), 0, len(starts))


def read_config(path: str, tokenizer) -> None:
    from albert.config import AlbertConfig

    AlbertConfig.from_json_file(path)


def read_theirs(path: str, tokenizer) -> None:
    from albert.formats import huggingface
    from albert.storage import files

    huggingface.config_from_theirs(files.read_json(path), path)


def read_sealed(path: str, tokenizer) -> None:
    from albert.storage import files

    files.read_sealed_json(path)


def read_documents(path: str, tokenizer) -> None:
    from albert.text import documents

    list(documents.read_documents([path], tokenizer.preprocess, documents.ReadingCounts()))


def read_corpus(path: str, tokenizer, layout: str | None) -> None:
    from albert.text import corpus_files, documents

    form = corpus_files.Form(layout, language="en")
    counts = documents.ReadingCounts()
    list(documents.read_documents([path], tokenizer.preprocess, counts, form=form))


def read_json_lines(path: str, tokenizer) -> None:
    read_corpus(path, tokenizer, "json")


def read_parquet(path: str, tokenizer) -> None:
    read_corpus(path, tokenizer, None)


def read_vocabulary(path: str, tokenizer) -> None:
    from albert.tokenization import FullTokenizer, check_special_pieces

    found = FullTokenizer(path, True)
    check_special_pieces(found)
    found.encode_text("w1, w2")


def read_text(path: str, tokenizer) -> None:
    ids = tokenizer.encode_text(pathlib.Path(path).read_bytes())
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


READERS = {
    "config": read_config, "documents": read_documents, "hf_config": read_theirs,
    "json_lines": read_json_lines, "parquet": read_parquet, "race": read_race, "records": read_records, "sealed_json": read_sealed,
    "squad": read_squad, "text": read_text, "tsv": read_tsv,
    "vocabulary": read_vocabulary,
}


_PASSAGE = (
    '{"article": "w1 w2", "questions": ["w1 _"], "options": [["a", "b", "c", "d"]], '
    '"answers": ["B"], "id": "1"}'
)
_SQUAD = (
    '{"version": "v2.0", "data": [{"paragraphs": [{"context": "w1 w2 w1", "qas": [{"id": "q", '
    '"question": "w1?", "is_impossible": false, '
    '"answers": [{"text": "w2", "answer_start": 3}]}]}]}]}'
)
_CONFIG = (
    '{"vocab_size": 9, "embedding_size": 4, "hidden_size": 4, "num_hidden_layers": 1, '
    '"num_attention_heads": 2, "intermediate_size": 4, "hidden_act": "gelu_new"}'
)


def seeds(reader: str) -> list[bytes]:
    """Returns valid seed inputs, whose mutations find bugs sooner than random bytes do."""
    import gzip

    from albert.records.tfrecord import frame_records

    texts = {
        "config": _CONFIG, "hf_config": _CONFIG, "sealed_json": '{"content_sha256": "0", "a": 1}',
        "race": _PASSAGE, "squad": _SQUAD, "tsv": "text\tlabel\nw1\t0\n",
        "documents": "w1 w2\nw2\n\nw1\n", "vocabulary": "\n".join(VOCABULARY),
        "text": "w1, (w2) é", "json_lines": '{"text": "w1. W2 é"}\n{"text": "w1\\nw2"}\n',
    }
    if reader == "parquet":
        return [_table("snappy"), _table("none")]
    if reader == "records":
        return [frame_records([bytes(range(4)), bytes(range(4, 9))])]
    if reader == "documents":
        text = texts[reader].encode()
        return [text, gzip.compress(text, mtime=0)]
    return [texts[reader].encode()]


def _table(compression: str) -> bytes:
    """Returns a Parquet table with one column of texts."""
    import io

    try:
        import pyarrow.parquet
    except ImportError:  # an optional dependency
        return b"PAR1"
    out, texts = io.BytesIO(), pyarrow.array(["w1 w2\nw1", None, "é"])
    pyarrow.parquet.write_table(
        pyarrow.table({"text": texts, "id": [1, 2, 3]}), out, compression=compression
    )
    return out.getvalue()


def make_tester(reader: str, folder: str):
    """Returns a function that runs the reader on one input and raises unless its error is clear."""
    from albert.errors import UserError
    from albert.tokenization import FullTokenizer

    vocabulary = os.path.join(folder, "vocab.txt")
    pathlib.Path(vocabulary).write_text("\n".join(VOCABULARY) + "\n")
    tokenizer, path = FullTokenizer(vocabulary, True), os.path.join(folder, "input")

    def test_one_input(data: bytes) -> None:
        with open(path, "wb") as stream:
            stream.write(data)
        try:
            READERS[reader](path, tokenizer)
        except UserError as error:
            if not str(error) or "\n" in str(error):
                raise AssertionError(f"not one line: {error!r}") from error

    return test_one_input


def main(argv: list[str]) -> int:
    """Returns the exit code; libFuzzer ends the process itself when it finds something."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reader", choices=sorted(READERS))
    parser.add_argument("--replay", nargs="+", metavar="FILE", help="inputs to run once, unfuzzed")
    arguments, rest = parser.parse_known_args(argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        if arguments.replay:
            test = make_tester(arguments.reader, folder)
            for path in arguments.replay:
                test(pathlib.Path(path).read_bytes())
            print(f"passed: {len(arguments.replay)} inputs")
            return 0
        try:
            import atheris
        except ImportError:
            print("error: fuzzing needs atheris: pip install atheris", file=sys.stderr)
            return 2
        with atheris.instrument_imports(include=["albert"]):
            test = make_tester(arguments.reader, folder)
            test(b"")  # the reader's own imports, which are now instrumented
        if all(argument.startswith("-") for argument in rest):
            rest = [os.path.join(folder, "seeds"), *rest]
            os.mkdir(rest[0])
            for number, seed in enumerate(seeds(arguments.reader)):
                pathlib.Path(rest[0], str(number)).write_bytes(seed)
        atheris.Setup([argv[0], *rest], test)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))

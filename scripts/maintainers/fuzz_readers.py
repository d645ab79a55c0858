"""Searches for input that gives neither a result nor one clear error line.

  pip install atheris
  python scripts/maintainers/fuzz_readers.py tsv -max_total_time=600
  python scripts/maintainers/fuzz_readers.py records corpus_folder -runs=100000

Atheris tracks which code of the reader each input reaches, and mutates those that reach
more. Arguments after the reader's name go to libFuzzer (a folder of seed inputs instead of
the built-in ones, -runs, -max_total_time, -rss_limit_mb). At the first finding it writes
the input to the working directory and exits with a code other than 0;
`python scripts/maintainers/fuzz_readers.py tsv crash-...` reproduces the finding. Without
atheris, `--replay FILE...` runs given inputs through the reader, and `torch --generated=200` runs
pickles of PyTorch that were made to read memory outside of them.
"""

import argparse
import io
import os
import pathlib
import random
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

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
    from albert.tasks.squad import features as squad_features
    from albert.tasks.squad import questions as squad_questions

    for is_training in (False, True):
        examples = squad_questions.read_examples(path, is_training)
        list(squad_features.make_windows(
            examples, tokenizer, max_seq_length=24, doc_stride=8, max_query_length=4,
            is_training=is_training,
        ))


def read_records(path: str, tokenizer) -> None:
    from albert.records import tfrecord

    list(tfrecord.read_records(path))


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


def read_torch(path: str, tokenizer) -> None:
    """Raises an AssertionError if an accepted tensor has a number that is not in the file."""
    import numpy as np
    import safetensors.numpy

    from albert.errors import DataError
    from albert.formats import torch_file

    target, content = f"{path}.safetensors", pathlib.Path(path).read_bytes()
    if problem := torch_file.convert(path, target):
        raise DataError(problem)
    for name, value in safetensors.numpy.load_file(target).items():
        assert value.nbytes <= len(content), f"{name} has {value.nbytes:,} bytes"
        assert all(one.tobytes() in content for one in np.unique(value.ravel())), f"{name} is foreign"


READERS = {
    "config": read_config, "documents": read_documents, "hf_config": read_theirs,
    "json_lines": read_json_lines, "parquet": read_parquet, "race": read_race, "records": read_records, "sealed_json": read_sealed,
    "squad": read_squad, "text": read_text, "torch": read_torch, "tsv": read_tsv,
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
    if reader == "torch":
        return [torch_zip(pickled({"a": tensor((2, 3), (3, 1))}))]
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


# === Pickles of PyTorch, without PyTorch ===


class Name(NamedTuple):
    """A class or function that a pickle names."""

    module: str
    name: str


class Storage(NamedTuple):
    """A part of the file, as a pickle names it."""

    key: str
    count: int
    kind: str = "FloatStorage"


class Call(NamedTuple):
    """A call in a pickle, and the state that its opcode BUILD then gives to the result."""

    function: Any
    arguments: tuple
    state: Any = None


CONTENT = bytes(range(1, 91)) * 44  # of each storage: 990 floats


def tensor(shape=(9,), strides=(1,), offset=0, storage=Storage("0", 990), state=None) -> Call:
    rebuild = Name("torch._utils", "_rebuild_tensor_v2")
    ordered = Call(Name("collections", "OrderedDict"), ())
    return Call(rebuild, (storage, offset, shape, strides, False, ordered), state)


def pickled(value: Any) -> bytes:
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    """Returns the opcodes that put a value on the stack, in the order in which PyTorch writes them."""
    match value:
        case None | True | False:
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        case Name(module, name):
            return f"c{module}\n{name}\n".encode()
        case Storage(key, count, kind):
            return _opcodes(("storage", Name("torch", kind), key, "cpu", count)) + b"Q"
        case Call(function, arguments, state):
            build = b"" if state is None else _opcodes(state) + b"b"
            return _opcodes(function) + _opcodes(arguments) + b"R" + build
        case int():
            number = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a" + bytes([len(number)]) + number
        case str():
            return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()
        case dict():
            items = b"".join(_opcodes(key) + _opcodes(x) for key, x in value.items())
            return b"}(" + items + b"u"
    return b"(" + b"".join(map(_opcodes, value)) + b"t"


def torch_zip(pickle: bytes, storages: dict[str, bytes] | None = None) -> bytes:
    """Returns the file that `torch.save` writes, by default with one storage of CONTENT."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/byteorder", "little")
        for key, content in (storages or {"0": CONTENT}).items():
            archive.writestr(f"archive/data/{key}", content)
        archive.writestr("archive/version", "3\n")
    return out.getvalue()


def hostile_pickles(count: int, seed: int = 0) -> Iterator[bytes]:
    """Yields files that claim tensors outside their storages, or of nothing: each trick, then more."""
    rng = random.Random(seed)
    numbers = (0, 1, 7, 989, 990, 991, 10_437, 1 << 20, 1 << 29, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, -1, -7)
    for number in range(count):
        few, many = rng.choice(numbers), 10_437 if number < 20 else rng.choice(numbers)
        of_file = Storage("0", 990)
        fresh = [
            Call(Name(module, name), (abs(many) % 50_000,))
            for module, name in (("torch", "FloatTensor"), ("torch", "Tensor"), ("torch.storage", "TypedStorage"),
                                 ("torch.storage", "UntypedStorage"))
        ]
        tricks = [
            tensor((many,), (0,)),  # stride 0: 4 KB that claim any size
            tensor(state={"shape": (many,), "strides": (1,)}),  # resized after the check
            tensor(state=(of_file, 0, (many,), (1,))),
            tensor(state=(of_file, few, (many, 2), (few, many))),
            tensor((many,), (1,), few), tensor((2, many), (many, few), 0),
            tensor((many,), (1,), 0, Storage("0", many)), tensor((9,), (1,), many, Storage("0", many)),
            tensor((many,), (1,), 0, Storage("0", many, "LongStorage")),
            tensor((many,), (1,), 0, Storage("absent", many)),
            *fresh, tensor((9,), (1,), 0, fresh[2]), tensor((many,), (1,), 0, fresh[3]),
            Call(Name("torch._utils", "_rebuild_parameter"), (tensor((many,)), True, {}), (many,)),
            Call(Name("torch._utils", "_rebuild_tensor_v3"),
                 (of_file, 0, (many,), (1,), False, {}, Name("torch", "float64"))),
            Call(Name("torch._utils", "_rebuild_meta_tensor_no_storage"),
                 (Name("torch", "float32"), (many,), (1,), False)),
            Call(Name("torch._tensor", "_rebuild_from_type_v2"),
                 (Name("torch", "FloatTensor"), Name("torch", "Tensor"), (many,), None)),
        ]
        pickle = pickled({"a": tricks[number % len(tricks)], "b": tensor()})
        data = torch_zip(pickle)
        if number >= 2 * len(tricks) and number % 3 == 0:  # and bytes changed at random
            data = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        yield bytes(data)


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
    parser.add_argument("--generated", type=int, help="number of hostile files to run (torch)")
    arguments, rest = parser.parse_known_args(argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        if arguments.replay:
            test = make_tester(arguments.reader, folder)
            for path in arguments.replay:
                test(pathlib.Path(path).read_bytes())
            print(f"passed: {len(arguments.replay)} inputs")
            return 0
        if arguments.generated:
            test = make_tester(arguments.reader, folder)
            for number, data in enumerate(hostile_pickles(arguments.generated)):
                print(f"input {number}", flush=True)
                test(data)
            print(f"passed: {arguments.generated} inputs")
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

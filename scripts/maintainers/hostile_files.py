"""Gives commands and readers files that lie: 400 of them, by default.

  python scripts/maintainers/hostile_files.py [COUNT]

Claims in headers, names that share prefixes, nested values, and kilobytes that unpack to
160 megabytes. Each file is read in a process of its own. A finding is a traceback, an error of several
lines, more than ten seconds of a processor, or more than a gigabyte of memory; it is kept, and the exit
code is 1. What is really in a packed file takes its time: it is stopped after ten seconds, and only its
memory counts.
"""

import argparse
import bz2
import gzip
import io
import json
import lzma
import os
import pathlib
import random
import resource
import runpy
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

import albert  # noqa: E402
from albert.records.tfrecord import frame_records, mask_crc  # noqa: E402

SECONDS, BYTES = 10, 1 << 30
LONG = {"bomb", "Parquet", "Parquet of text"}  # kinds of files that hold as much as they claim
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "w1", "w2", "##a", ","]
CLAIMS = [2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1]
CONFIG = {
    "model_type": "albert", "vocab_size": 9, "embedding_size": 4, "hidden_size": 4, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 4, "hidden_act": "gelu_new", "architectures": ["AlbertModel"],
}


# === Files that lie ===


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(number: int, content: bytes, claim: int | None = None) -> bytes:
    """Returns a field of a protobuf message, whose length may be a claim."""
    return varint(number << 3 | 2) + varint(len(content) if claim is None else claim) + content


def nested(rng: random.Random, innermost: str = "1") -> str:
    depth = rng.choice([500, 20_000, 200_000])
    left, right = rng.choice([("[", "]"), ('{"a":', "}")])
    return left * depth + innermost + right * rng.choice([depth, depth - 1, 0])


def packed(rng: random.Random, content: bytes) -> tuple[str, bytes]:
    """Returns the end of a name and the packed content, perhaps twice."""
    kinds = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    ending = rng.choice(sorted(kinds))
    inner = rng.choice([lambda x: x, kinds[ending]])
    return ending, kinds[ending](inner(content))


def bundle_index(rng: random.Random) -> bytes:
    """Returns the index of a TensorFlow checkpoint: one block, its index and a footer."""
    def block(rows: list[tuple[int, bytes, bytes]]) -> bytes:
        body = b"".join(varint(shared) + varint(len(key)) + varint(len(value)) + key + value
                        for shared, key, value in rows) + struct.pack("<II", 0, 1)
        crc = mask_crc(__import__("google_crc32c").value(body + b"\0"))
        return body + b"\0" + struct.pack("<I", crc)

    claim = rng.choice(CLAIMS)
    kind = rng.randrange(5)
    header = b"\x08" + varint(claim if kind == 0 else 1)
    shape = b"".join(message(2, b"\x08" + varint(claim if kind == 1 else 4)) for _ in range(rng.choice([1, 2, 60])))
    entry = b"\x08\x01" + message(2, shape) + b"\x20" + varint(claim if kind == 2 else 0) + b"\x28" + varint(claim)
    rows = [(0, b"", header), (0, b"bert/a", entry)]
    if kind == 3:  # names that share all that precedes them
        rows += [(6 + 8 * i, b"x" * 8, entry) for i in range(20_000)]
    data = block(rows)
    place = varint(claim if kind == 4 else 0) + varint(len(data) - 5)
    index = block([(0, b"z", place)])
    footer = varint(len(data)) + varint(8) + varint(len(data)) + varint(len(index) - 5)
    return data + index + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def safetensors(rng: random.Random) -> bytes:
    claim = rng.choice(CLAIMS)
    one = {"dtype": rng.choice(["F32", "BF16", "F4", "I64"]), "shape": [4, 4], "data_offsets": [0, 64]}
    changed = rng.choice([
        {"shape": [claim, claim]}, {"shape": [-1, 4]}, {"data_offsets": [claim, claim + 64]},
        {"data_offsets": [64, 0]}, {"shape": [1] * 5000}, {"shape": []}, {"dtype": "F" * 100_000}, {},
    ])
    names = rng.choice([["encoder.layer.0"], [f"a{i}" for i in range(30_000)]])
    header = rng.choice([json.dumps(dict.fromkeys(names, one | changed)), nested(rng), '{"a":1}'])
    length = rng.choice([len(header), len(header), claim])
    return struct.pack("<Q", length) + header.encode() + bytes(64)


def piece_model(rng: random.Random) -> bytes:
    """Returns a SentencePiece model."""
    claim = rng.choice(CLAIMS)
    name = rng.choice([b"w1", b"\xff\xfe", b"", b"x" * 200_000, b"<unk>"])
    piece = message(1, name) + b"\x15" + struct.pack("<f", rng.choice([0.0, float("nan"), 1e38]))
    pieces = message(1, piece) * rng.choice([1, 2, 50_000 if len(name) < 10 else 50])
    return pieces + rng.choice([b"", message(1, piece, claim), message(2, b"\x18" + varint(claim)),
                                message(3, message(2, bytes(8), claim))])


def tokenizer_json(rng: random.Random) -> str:
    claim = rng.choice(CLAIMS)
    vocabulary = rng.choice([
        {word: i for i, word in enumerate(VOCABULARY)}, {word: claim for word in VOCABULARY}, {"w1": "x"},
        [["w1", 0.0]] * 1000, [["w1"]], [], {}, {f"x{i}": i * 10**6 for i in range(1000)}, None,
    ])
    model = {"type": rng.choice(["WordPiece", "Unigram", "BPE", 7]), "vocab": vocabulary, "unk_token": "[UNK]",
             "unk_id": rng.choice([0, claim, -1, None])}
    added = [{"id": rng.choice([0, claim, "a"]), "content": rng.choice(["[CLS]", "", "x" * 10**6]), "special": True}]
    nest = {"type": "Sequence", "normalizers": []}
    for _ in range(rng.choice([1, 300])):
        nest = {"type": "Sequence", "normalizers": [nest]}
    return rng.choice([json.dumps({"model": model, "added_tokens": added, "normalizer": nest}), nested(rng)])


def records(rng: random.Random) -> bytes:
    claim = rng.choice(CLAIMS)
    counts = message(3, message(1, rng.choice([b"\x80" * 50_000, varint(claim), varint(1) * 100_000])))
    feature = message(1, b"input_ids") + message(2, counts, rng.choice([None, claim]))
    example = message(1, message(1, feature, rng.choice([None, claim])))
    true = frame_records([example * rng.choice([1, 1, 500])])
    if rng.random() < 0.4:
        length = struct.pack("<Q", claim)
        return length + struct.pack("<I", mask_crc(__import__("google_crc32c").value(length))) + true[12:]
    return true


def parquet(rng: random.Random) -> bytes:
    import pyarrow
    import pyarrow.parquet

    out, rows = io.BytesIO(), rng.choice([10, 3_000_000])
    text = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * rows, pyarrow.int32()), pyarrow.array(["w1 w2 " * rng.choice([1, 20_000])]))
    label = pyarrow.array([rng.choice([2**62, 0, -(2**62)])] * rows, pyarrow.timestamp(rng.choice(["us", "ns"])))
    pyarrow.parquet.write_table(pyarrow.table({"text": text, "label": label}), out, compression="zstd")
    return damaged(rng, out.getvalue())


def damaged(rng: random.Random, content: bytes) -> bytes:
    content = bytearray(content)
    for _ in range(rng.choice([0, 1, 8])):
        content[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(content)


def table(rng: random.Random) -> bytes:
    return rng.choice([
        lambda: b"text,label\n" + b'"w1,' * 300_000,
        lambda: b",".join([b"text"] * 50_000) + b"\n" + b",".join([b"w1"] * 50_000) + b"\n",
        lambda: b"text,label\n" + b"".join(b"w1,l%d\n" % i for i in range(20_000)),
        lambda: b"text,label\n" + b"x" * 30_000_000 + b",a\nw1,b\n",
        lambda: b"\xff\xfet\0e\0x\0t\0,\0", lambda: b"text,label\nw1,\0\nw2,b\n" * 20,
        lambda: b"text,text,label,label\nw1,w2,a,b\n" * 10,
    ])()


def json_lines(rng: random.Random) -> bytes:
    value = rng.choice([nested(rng), "1e400", "-0", '"\\ud800"', '{"a":1,"a":2}', "9" * 5000, '"' + "w" * 10**7 + '"'])
    key = rng.choice(["text", "label", "other"])
    return (f'{{"text": "w1", "label": "a", "{key}": {value}}}\n' * rng.choice([1, 3])).encode()


# === What reads them ===


def model_with(name: str, content: bytes):
    """Reads a model's directory in which one file lies."""
    def read(folder: pathlib.Path) -> None:
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
        if name in ("tokenizer.json", "spiece.model"):
            (folder / "vocab.txt").unlink()
        (folder / name).write_bytes(content)
        if name == "model.ckpt-best.index":
            (folder / "model.ckpt-best.data-00000-of-00001").write_bytes(bytes(64))
            (folder / "albert_config.json").write_text(json.dumps(CONFIG))
            albert.AlbertModel.from_pretrained(str(folder / "model.ckpt-best"))
        elif name in ("tokenizer.json", "spiece.model", "tokenizer_config.json"):
            albert.AlbertTokenizer.from_pretrained(str(folder))
        else:
            albert.AlbertModel.from_pretrained(str(folder))
    return read


def command(module: str, flag: str, name: str, content: bytes, *flags: str):
    """Runs a command on a file that lies."""
    def read(folder: pathlib.Path) -> None:
        (folder / name).write_bytes(content)
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
        (folder / "config.json").write_text(json.dumps(CONFIG))
        sys.argv = [module, f"--{flag}={folder / name}", *(one.format(folder) for one in flags)]
        runpy.run_module(f"albert.{module}", run_name="__main__")
    return read


def case(rng: random.Random):
    """Returns the kind of a file and a function that reads it in a folder."""
    classifier = ("--output_dir={}/out", "--albert_config_file={}/config.json", "--vocab_file={}/vocab.txt",
                  "--train_step=1")
    create = ("--output_file={}/out.tfrecord", "--vocab_file={}/vocab.txt", "--max_seq_length=16",
              "--max_predictions_per_seq=2")
    train = ("--output_dir={}/out", "--albert_config_file={}/config.json", "--num_train_steps=1")
    bomb = rng.choice([b" ", b"w1 ", b"w1\n", b"{\"text\": \"w1\"}\n"]) * 10_000_000
    makers = {
        "bundle": lambda: model_with("model.ckpt-best.index", bundle_index(rng)),
        "safetensors": lambda: model_with("model.safetensors", safetensors(rng)),
        "index of shards": lambda: model_with("model.safetensors.index.json", json.dumps({"weight_map": rng.choice([
            {f"a{i}": f"{i}.safetensors" for i in range(50_000)}, {"a": "../../etc/passwd"}, {"a": 7}, []])}).encode()),
        "config": lambda: model_with("config.json", rng.choice([
            nested(rng), json.dumps(CONFIG | {rng.choice(list(CONFIG)): rng.choice([*CLAIMS, -1, 1e300, None, []])})]).encode()),
        "SentencePiece": lambda: model_with("spiece.model", piece_model(rng)),
        "tokenizer.json": lambda: model_with("tokenizer.json", tokenizer_json(rng).encode()),
        "bomb": lambda: command("create_pretraining_data", "input_file", *(lambda p: ("t" + p[0], p[1]))(packed(rng, bomb)), *create),
        "JSON lines of text": lambda: command("create_pretraining_data", "input_file", "t.jsonl", json_lines(rng), *create),
        "Parquet of text": lambda: command("create_pretraining_data", "input_file", "t.parquet", parquet(rng), *create),
        "table": lambda: command("run_classifier", "train_file", "t.csv", table(rng), *classifier),
        "JSON lines": lambda: command("run_classifier", "train_file", "t.jsonl", json_lines(rng), *classifier),
        "Parquet": lambda: command("run_classifier", "train_file", "t.parquet", parquet(rng), *classifier),
        "records": lambda: command("run_pretraining", "input_file", "t.tfrecord", records(rng), *train),
        "SQuAD": lambda: command("run_squad", "train_file", "t.json", rng.choice([
            nested(rng), '{"data": [{"paragraphs": ' + nested(rng) + "}]}"]).encode(), "--do_train", *classifier),
    }
    kind = rng.choice(sorted(makers))
    return kind, makers[kind]()


def outcome(read, folder: pathlib.Path, is_long: bool) -> str:
    """Returns what is wrong with an outcome; "" if nothing is. A long one is stopped early."""
    errors = folder / "stderr"
    process = os.fork()
    if not process:
        os.setsid()
        stream = os.open(errors, os.O_CREAT | os.O_WRONLY)
        os.dup2(stream, 1), os.dup2(stream, 2)
        code = 1
        try:
            read(folder)
            code = 0
        except SystemExit as error:
            code = error.code or 0
        except albert.errors.UserError as error:
            code = 1 if "\n" in str(error) or len(str(error)) > 2000 else 2
            os.write(2, str(error).encode(errors="replace"))
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code if isinstance(code, int) else 1)
    end = time.monotonic() + SECONDS * (1 if is_long else 6)  # six: for a busy machine
    while not (found := os.wait4(process, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.02)
    if not found[0]:
        os.killpg(process, signal.SIGKILL)
        found = os.wait4(process, 0)
    seconds = found[2].ru_utime + found[2].ru_stime
    used = found[2].ru_maxrss * 1024 - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if used > BYTES:
        return f"{used / 1e9:.1f} GB"
    if is_long and os.WIFSIGNALED(found[1]):
        return ""
    if seconds > SECONDS or os.WIFSIGNALED(found[1]):
        return f"{seconds:.0f} s of a processor"
    said = errors.read_text(errors="replace")
    if "Traceback" in said or os.waitstatus_to_exitcode(found[1]) not in (0, 2, 3):
        return f"exit {os.waitstatus_to_exitcode(found[1])}: {said.strip()[-300:]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=400)
    count = parser.parse_args().count
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import pyarrow.parquet  # noqa: F401 - so that no process has to
    import sentencepiece  # noqa: F401

    _ = albert.AlbertModel, albert.AlbertTokenizer  # which imports Keras
    kinds, findings = {}, 0
    for seed in range(count):
        kind, read = case(random.Random(seed))
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"hostile-{seed}-"))
        wrong = outcome(read, folder, kind in LONG)
        good, bad = kinds.get(kind, (0, 0))
        kinds[kind] = (good + (not wrong), bad + bool(wrong))
        if wrong:
            findings += 1
            print(f"{seed} ({kind}) in {folder}: {wrong}", flush=True)
        else:
            shutil.rmtree(folder)
    for kind, (good, bad) in sorted(kinds.items()):
        print(f"{kind}: {good} refused or read, {bad} findings")
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())

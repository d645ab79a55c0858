"""Untrusted files: nothing in them is executed, and nothing is written outside."""

import ast
import gzip
import json
import os
import pathlib
import pickle
import re
import struct
import tracemalloc

import jobs
import numpy as np
import pytest
from damage import Bomb
from helpers import REPO, SIZES, assert_one_clear_line, run_here, write_config
from invariants import snapshot

import albert
from albert import extract_features, modeling, predict
from albert.config import AlbertConfig
from albert.errors import CheckpointError, DataError, UserError
from albert.formats import checkpoints, hf_weights, metadata, pretrained, tensor_bundle
from albert.records.protobuf import field, varint
from albert.records.tfrecord import masked_crc32c
from albert.storage import files, temporary
from albert.tasks import glue, lines
from albert.tasks import table as tables
from albert.tasks.classification import ClassificationTask
from albert.tokenization import FullTokenizer
from albert.training import store


# --- Nothing is unpickled or executed ---

# The only purpose of these is to unpickle, to run given code, or to start programs.
MODULES = set("""
pickle _pickle cPickle cloudpickle dill joblib shelve marshal torch h5py yaml runpy subprocess pty
pdb code codeop imp zipimport builtins ctypes cffi _posixsubprocess
""".split())
NAMES = set("""
__import__ __builtins__ import_module exec_module load_module importlib.util importlib.machinery
importlib.reload extractall unpack_archive read_pickle models.load_model saving.load_model * popen
deserialize_keras_object load_library load_op_library posix_spawn posix_spawnp os.startfile
os.system enable_unsafe_deserialization
logging.config execl execle execlp execv execve execvp spawnl spawnv
saved_model.load hub.load tensorflow_hub.load KerasLayer
""".split())
BARE = {"eval", "exec", "compile"}  # not re.compile and model.compile
# Permitted in a single module, for the reason given.
ALLOWED = {
    ("__init__", "import_module"): "our own modules, by our own table",
    ("engines", "import_module"): "Keras and our own modules, by constant names",
    ("pretrain_from_text", "import_module"): "our own commands, by constant names",
    ("engines", "importlib.util"): "asks whether TensorFlow and JAX are there, by constant names",
    ("pretraining_data/beam", "import_module"): "the runner that the user names in --runner",
    ("formats/hf_weights", "subprocess"): "PyTorch with weights_only, which may crash",
}


def dangers(source: str) -> set[str]:
    """Returns the names in a module's source that could execute data, whether called or passed on."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0):
            home = getattr(node, "module", None)
            for name in (alias.name for alias in node.names):
                found |= {(home or name).split(".")[0]} & MODULES
                found |= {name, f"{home}.{name}"} & (NAMES | BARE)
        elif isinstance(node, ast.Name):
            found |= {node.id} & (NAMES | BARE)
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            found |= {node.attr, f"{owner.split('.')[-1]}.{node.attr}"} & NAMES
            found |= {"os.system"} if node.attr == "system" and owner != "platform" else set()
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            given = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if function == "getattr":
                found |= {f"os.{getattr(node.args[1], 'value', '')}"} & NAMES
            if function in ("np.load", "numpy.load"):
                given.setdefault("allow_pickle", "not said")
            found |= {
                key for key, safe in (("allow_pickle", "False"), ("safe_mode", "True"))
                if given.get(key, safe) != safe
            }
    return found


DANGEROUS = """\
eval(text); run = exec; compile(text, 'a', 'exec'); __import__(name); import subprocess
from subprocess import run as go; import runpy; import torch.nn; import builtins
import importlib|importlib.import_module(name); from importlib import import_module as load
import importlib.util; import os|os.system(text); from os import system; from os import *
import os as o|o.popen(text); import os|os.execv(path, words); import os|os.posix_spawn(a, b, {})
import os|getattr(os, 'system')(text); import sys|sys.modules['os'].system(text)
import pickle as p; from pickle import loads; import shutil|shutil.unpack_archive(path)
tarfile.open(path).extractall(); spec.loader.exec_module(module); import numpy as np|np.load(path)
import numpy as np|np.load(path, None, False); import numpy|numpy.load(path, allow_pickle=True)
read_array(f, allow_pickle=flag); import keras|keras.models.load_model(path)
reload(path, safe_mode=False); import tensorflow as tf|tf.saved_model.load(path)
import tensorflow_hub as hub|hub.load; def inside():|    import ctypes"""
HARMLESS = """\
import re|re.compile(text); code = run()|if code: system = code; json.load(stream)
import numpy as np|np.load(path, allow_pickle=False); import os|os.path.exists(path)
model.compile(); getattr(value, name); 'eval(text)'; from . import pickle_free
import platform|platform.system()"""


def test_no_module_can_execute_what_it_reads():
    for sources, is_dangerous in ((DANGEROUS, True), (HARMLESS, False)):
        for source in re.split(r"; |\n", sources):
            assert bool(dangers(source.replace("|", "\n"))) == is_dangerous, source
    for path in (REPO / "albert").rglob("*.py"):
        name = path.relative_to(REPO / "albert").with_suffix("").as_posix()
        # Equality, so that no permission outlives its need.
        allowed = {what for module, what in ALLOWED if module == name}
        assert dangers(path.read_text("utf-8")) == allowed, name


def test_a_pickle_among_a_checkpoints_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("OWNED", str(tmp_path / "owned"))
    for ending in (".index", ".data-00000-of-00001", ".json"):
        prefix = store.save(
            str(tmp_path), 1, {"bert/a": np.zeros(9, "float32")}, {"records_seen": 1}, 0
        )
        pathlib.Path(prefix + ending).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(UserError):
            metadata.read_run_state(prefix)
            checkpoints.open_weights(prefix).read("bert/a")
    assert not (tmp_path / "owned").exists()


# --- False sizes, and paths that lead elsewhere ---


def test_lengths_that_lie_are_refused(tmp_path):
    (tmp_path / "in").mkdir()
    config = AlbertConfig.from_json_file(write_config(tmp_path))
    path = tmp_path / "in/model.safetensors"
    for length in (1 << 62, (1 << 64) - 1, 200_000_000):
        path.write_bytes(struct.pack("<Q", length) + b"{" + b" " * 64)
        with pytest.raises(CheckpointError, match="not a readable safetensors file"):
            hf_weights.open_weights(str(path), config)


def _index(rows: list[tuple[bytes, bytes]], blocks: int = 1, filling: int = 0) -> bytes:
    """Returns an index whose keys omit the prefix of the key before; its block is listed `blocks` times.

    The block ends in `filling` places where reading could begin.
    """
    block, last = bytearray(), b""
    for key, value in rows:
        shared = max(0, len(last) - 6) if key.startswith(last[:-6]) else 0
        block += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    table = bytearray()

    def append(content: bytes) -> bytes:
        content = bytes(content) + bytes(4 * filling) + struct.pack("<II", 0, 1 + filling)
        handle = varint(len(table)) + varint(len(content))
        table.extend(content + b"\0" + struct.pack("<I", masked_crc32c(content + b"\0")))
        return handle

    handle, top = append(block), bytearray()
    for number in range(blocks):
        key = b"%09d" % number
        top += varint(0) + varint(len(key)) + varint(len(handle)) + key + handle
    footer = (append(b"") + append(top)).ljust(40, b"\0")
    return bytes(table) + footer + struct.pack("<Q", tensor_bundle._MAGIC)


def _claims(shard: int = 0, axes: int = 1) -> bytes:
    shape = b"".join(field(2, b"\x08" + varint(1 << 40)) for _ in range(axes))
    return b"\x08\x01" + field(2, shape) + b"\x18" + varint(shard) + b"\x20\0\x28\x04\x35" + bytes(4)


HEADER = b"\x1a\x02\x08\x01"
# The contents of an index, each of which would have us loop or allocate for ever.
GREEDY = {
    **{f"{count:.0e} data files": lambda count=count: _index([(b"", b"\x08" + varint(count) + HEADER)])
       for count in (100_000, 10**7, 1 << 62)},
    "a data file that is not there": lambda: _index([(b"", b"\x08\x01" + HEADER), (b"a", _claims(7))]),
    "names that share a prefix": lambda: _index(
        [(b"", b"\x08\x01" + HEADER)]
        + [(b"a" * 40_000 + b"%06d" % n, _claims()) for n in range(2_000)]
    ),
    "a long name": lambda: _index([(b"", b"\x08\x01" + HEADER), (b"a" * 3_000_000, _claims())]),
    "a block many times": lambda: _index(
        [(b"", b"\x08\x01" + HEADER)] + [(b"%06d" % n, b"") for n in range(40_000)], 40_000
    ),
    "a block without names many times": lambda: _index([], 100_000, 200_000),
    "a number without end": lambda: _index([(b"", b"\x08" + b"\xff" * 300_000 + b"\1" + HEADER)]),
    "many axes": lambda: _index([(b"", b"\x08\x01" + HEADER), (b"a", _claims(axes=40_000))]),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("claim", GREEDY)
def test_no_claim_of_a_checkpoint_makes_us_loop_or_allocate(claim, tmp_path):
    (tmp_path / "x.index").write_bytes(GREEDY[claim]())
    (tmp_path / "x.data-00000-of-00001").write_bytes(bytes(64))
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=f"{tmp_path}/x") as refused:
        checkpoints.open_weights(f"{tmp_path}/x")
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()
    assert len(str(refused.value)) < 2_500 and "\n" not in str(refused.value)


@pytest.mark.parametrize("has_fast_file", [False, True])
def test_a_sentencepiece_model_with_bytes_that_are_no_text_is_refused(
    has_fast_file, golden_path, tmp_path, capsys
):
    tokenizer = FullTokenizer(None, spm_model_file=str(golden_path("spm/30k-clean.model")))
    config = albert.AlbertConfig(**SIZES | {"vocab_size": tokenizer.vocab_size})
    albert.AlbertModel(config).save_pretrained(tmp_path / "model")
    albert.AlbertTokenizer(tokenizer).save_pretrained(tmp_path / "model")
    path = tmp_path / "model/spiece.model"
    path.write_bytes(path.read_bytes().replace("\u2581the".encode(), b"\xff\x96\x81the", 1))
    if not has_fast_file:
        (tmp_path / "model/tokenizer.json").unlink(missing_ok=True)
    (tmp_path / "in.txt").write_text("A text.\n")
    assert 2 == run_here(extract_features, f"--model={tmp_path}/model",
                         f"--input_file={tmp_path}/in.txt", f"--output_file={tmp_path}/out.jsonl")
    assert "spiece.model" in assert_one_clear_line(capsys.readouterr().err)


def test_a_table_of_no_date_or_of_gigabytes_is_refused(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    dates = pyarrow.array([1 << 62], pyarrow.int64()).cast(pyarrow.timestamp("us"))
    parquet.write_table(pyarrow.table({"text": ["a"], "when": dates}), path)
    with pytest.raises(DataError, match="a.parquet: a value after row 0 cannot be read"):
        tables.read_table(str(path), "train_file").texts(1)
    assert tables.read_table(str(path), "train_file").texts(0) == ["a"]  # the other column is not read
    monkeypatch.setattr(lines, "MAX_BYTES", 8 << 20)
    parquet.write_table(pyarrow.table({"text": ["a" * 1_000_000] * 30}), path, compression="zstd")
    shared = tmp_path / "b.parquet"  # one text, to which each row refers
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 30, pyarrow.int32()), ["a" * 1_000_000])
    parquet.write_table(pyarrow.table({"text": texts}), shared)
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(b"text,label\n" + b"a" * 30_000_000))
    for path in (path, shared, packed):
        assert path.stat().st_size < 1 << 20
        with pytest.raises(DataError, match=f"{path.name}: more than 8 MB when it is unpacked"):
            tables.read_table(str(path), "train_file").texts(0)


def test_a_vocabulary_that_a_checkpoints_record_names_is_not_opened(tmp_path, capsys):
    config = AlbertConfig.from_json_file(write_config(tmp_path))
    folder, pipe = tmp_path / "model", tmp_path / "elsewhere.txt"
    os.mkfifo(pipe)  # reading it would block forever
    folder.mkdir()
    pretrained.save(modeling.AlbertForSequenceClassification(config, 2), str(folder), is_archive=True)
    record = json.loads((folder / "model.ckpt-best.json").read_text())
    record["flags"] = {"vocab_file": str(pipe)}
    del record["content_sha256"]
    (folder / "model.ckpt-best.json").write_text(json.dumps(record))
    (tmp_path / "in.txt").write_text("w1\n")
    assert 2 == run_here(predict, f"--model={folder}", f"--input_file={tmp_path}/in.txt")
    assert "has no vocabulary" in assert_one_clear_line(capsys.readouterr().err)


def test_ids_of_the_data_are_content_and_never_names_or_lines(tmp_path):
    scores = {"logits": np.eye(2), "probabilities": np.eye(2)}
    for number, guid in enumerate(("../../etc/passwd", "a\tb\nc\td", "\ud800", "\0", "=1+1", "")):
        out = tmp_path / f"out{number}"
        out.mkdir()
        examples = [glue.Example(guid, "a", None, "0"), glue.Example("7", "a", None, "0")]
        task, before = ClassificationTask("sst-2", 8, ("0", "1")), snapshot(tmp_path)
        written = task.write_predictions(examples, scores, str(out))
        assert {os.path.dirname(path) for path in written} == {str(out)}
        assert set(snapshot(tmp_path)) - set(before) == set(written)
        for path in written[1:]:
            lines = pathlib.Path(path).read_bytes().decode("utf-8").split("\n")
            assert len(lines) == 4 and all(line.count("\t") == 1 for line in lines[:3])


def test_output_is_not_written_through_links_that_lie_in_the_directory(tmp_path, capsys):
    job, victim = jobs.pretraining_flags(tmp_path), tmp_path / "victim"
    for name in ("metrics.jsonl", ".lock"):
        victim.write_text(precious := '{"step": 0, "kind": "train"}\n')
        (tmp_path / name).mkdir()
        (tmp_path / name / name).symlink_to(victim)
        assert jobs.pretrain(*job, f"--output_dir={tmp_path / name}") == 2
        assert name in assert_one_clear_line(capsys.readouterr().err)
        assert victim.read_text() == precious


def test_what_is_published_and_cleaned_up_follows_no_link(tmp_path):
    (tmp_path / "precious").mkdir()
    victim, run = tmp_path / "precious/file", tmp_path / "run"
    victim.write_text("precious")
    run.mkdir()
    for name in ("best.json", "model.ckpt-1.json", "model.ckpt-1.index", "checkpoint"):
        (run / name).symlink_to(victim)
    files.write_sealed_json(str(run / "best.json"), {"step": 1})
    store.save(str(run), 1, {"bert/a": np.zeros(3, "float32")}, {}, 0)
    assert not any(path.is_symlink() for path in run.iterdir())
    (run / ".x.tmp-abcdefgh").symlink_to(tmp_path / "precious")  # left by a killed run
    with temporary.temporary_dir(str(run / "x")):
        assert victim.exists()
    assert victim.read_text() == "precious"


# --- Untrusted modules ---


def test_a_module_of_a_stranger_is_read_for_its_variables_and_neither_loaded_nor_called(
    tmp_path, monkeypatch
):
    import tensorflow as tf

    class Trap(tf.Module):  # writes a file when it is called
        @tf.function(input_signature=[])
        def serve(self):
            tf.io.write_file(str(tmp_path / "owned"), "called")
            return {"x": tf.constant(1)}

    trap, folder = Trap(), tmp_path / "module"
    trap.weights = {"bert/a": tf.Variable(tf.ones([3]))}
    tf.saved_model.save(trap, str(folder), signatures={"serving_default": trap.serve})
    write_config(folder / "assets")
    monkeypatch.setattr(tf.saved_model, "load", lambda *_, **__: pytest.fail("it was loaded"))
    weights = pretrained.open_module(str(folder)).weights()
    np.testing.assert_array_equal(weights.read("bert/a"), np.ones(3))
    (folder / "saved_model.pb").write_bytes(b"\xff garbage, which nobody reads")
    weights = pretrained.open_any_weights(str(folder))
    np.testing.assert_array_equal(weights.read("bert/a"), np.ones(3))
    assert not (tmp_path / "owned").exists()

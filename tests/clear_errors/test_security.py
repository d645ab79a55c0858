"""Files from strangers: nothing of them is executed, and nothing is written outside."""

import ast
import json
import os
import pathlib
import pickle
import re
import struct

import h5py
import numpy as np
import pytest
from helpers import REPO, assert_one_clear_line, run_here, write_config
from invariants import nothing_lost, snapshot

from albert import modeling, predict
from albert.config import AlbertConfig
from albert.errors import CheckpointError, UserError
from albert.formats import checkpoints, hf_tensors, pretrained, run_states
from albert.storage import files, temporary
from albert.tasks import glue
from albert.tasks.fine_tuning_data import FineTuningData
from albert.training import checkpoint_store
import jobs


class Bomb:
    """Pickled, it leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.fixture
def bomb(tmp_path):
    owned = tmp_path / "owned"
    yield pickle.dumps(Bomb(owned))
    assert not owned.exists(), "code of the file was executed"


def test_the_bomb_works(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "owned")))
    assert (tmp_path / "owned").exists()


# --- Nothing is unpickled or executed ---

# To unpickle, to run what is given, or to start programs is all that these are for.
FORBIDDEN_MODULES = {
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "torch",
    "h5py", "yaml", "runpy", "subprocess", "_posixsubprocess", "pty", "pdb", "code", "codeop",
    "imp", "zipimport", "builtins", "ctypes", "cffi",
}
FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "__builtins__", "importlib.util",
    "importlib.machinery", "importlib.reload", "importlib.__import__", "os.startfile",
    "logging.config", "tensorflow.saved_model.load", "tensorflow_hub.load",
    "tensorflow_hub.KerasLayer", "keras.config.enable_unsafe_deserialization",
}
# Ends of names, whatever stands before them: methods of objects that only a run knows.
FORBIDDEN_ENDS = re.compile(
    r"(^|\.)(\*|import_module|exec_module|load_module|extractall|unpack_archive|read_pickle"
    r"|models\.load_model|saving\.load_model|deserialize_keras_object|load_library"
    r"|load_op_library|posix_spawnp?|create_subprocess_\w+)$"
    r"|^(os|\?)\.(system|popen|exec[lv]\w*|spawn[lv]\w*)$"
)
# What stands in one place with a good reason.
ALLOWED = {
    ("__init__", "importlib.import_module"): "our own modules, by our own table",
    ("engines", "importlib.util"): "asks whether TensorFlow and JAX are there, by constant names",
    ("storage/fsspec_calls", "importlib.util"): "asks whether fsspec is there, by its name",
    ("pretraining_data/beam", "importlib.import_module"):
        "the runner that the user names in --runner",
    
    ("cli/engine_start", "subprocess"): "grep, which leaves out what TensorFlow always says",
    ("formats/archives", "archive.extractall"): "with Python's filter for data, sizes checked first",
    ("formats/hf_tensors", "h5py"): "arrays by name, none that lies in another file",
    ("export/hub_layer", "tensorflow_hub.load"): "to compute with a module's graph is its purpose",
}


def full_name(node: ast.AST, known: dict[str, str]) -> str:
    """Returns what an expression names, imports resolved: of `np.load`, numpy.load."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value, known)}.{node.attr}"
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
        return f"{full_name(node.args[0], known)}.{getattr(node.args[1], 'value', '?')}"
    return "?"


def dangers(source: str) -> set[str]:
    """Returns the full names of what could execute data in a module's source."""
    tree, known, found = ast.parse(source), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                known[alias.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        else:
            continue
        found |= {name.split(".")[0] for name in imported} & FORBIDDEN_MODULES
        found |= {name for name in imported if name in FORBIDDEN or FORBIDDEN_ENDS.search(name)}
    for node in ast.walk(tree):
        # A name is enough: what is not called here may be handed on.
        name = full_name(node, known)
        if name in FORBIDDEN or FORBIDDEN_ENDS.search(name):
            found.add(name)
        if isinstance(node, ast.Call):
            given = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if full_name(node.func, known) == "numpy.load":
                given.setdefault("allow_pickle", "not said")
            found |= {
                f"{key}={given[key]}"
                for key, safe in (("allow_pickle", "False"), ("safe_mode", "True"))
                if given.get(key, safe) != safe
            }
    return found


@pytest.mark.parametrize("source", [
    "eval(text)", "run = exec", "compile(text, 'a', 'exec')", "__import__(name)",
    "import subprocess", "from subprocess import run as go", "import runpy", "import torch.nn",
    "import importlib\nimportlib.import_module(name)",
    "from importlib import import_module as load", "import importlib.util",
    "import os\nos.system(text)", "from os import system", "import os as o\no.popen(text)",
    "import os\nos.execv(path, words)", "import os\nos.posix_spawn(path, words, {})",
    "import os\ngetattr(os, 'system')(text)", "import sys\nsys.modules['os'].system(text)",
    "from os import *", "import builtins", "import pickle as p", "from pickle import loads",
    "import shutil\nshutil.unpack_archive(path)", "tarfile.open(path).extractall()",
    "spec.loader.exec_module(module)", "import numpy as np\nnp.load(path)",
    "import numpy as np\nnp.load(path, None, False)",
    "import numpy\nnumpy.load(path, allow_pickle=True)", "read_array(f, allow_pickle=flag)",
    "import keras\nkeras.models.load_model(path)", "reload(path, safe_mode=False)",
    "import tensorflow as tf\ntf.saved_model.load(path)", "import tensorflow_hub as hub\nhub.load",
    "def inside():\n    import ctypes",
])
def test_what_could_execute_data_is_seen(source):
    assert dangers(source)


@pytest.mark.parametrize("source", [
    "import re\nre.compile(text)", "code = run()\nif code: system = code",
    "import numpy as np\nnp.load(path, allow_pickle=False)", "json.load(stream)",
    "import os\nos.path.exists(path)", "model.compile()", "getattr(value, name)", "'eval(text)'",
    "from . import pickle_free", "import platform\nplatform.system()",
])
def test_what_executes_nothing_passes(source):
    assert not dangers(source)


def module_name(path: pathlib.Path) -> str:
    return path.relative_to(REPO / "albert").with_suffix("").as_posix()


@pytest.mark.parametrize("path", sorted((REPO / "albert").rglob("*.py")), ids=module_name)
def test_no_module_can_execute_what_it_reads(path):
    allowed = {what for module, what in ALLOWED if module == module_name(path)}
    # Equal, so that no permission outlives its need.
    assert dangers(path.read_text("utf-8")) == allowed


@pytest.mark.parametrize("name", ["w.pkl", "w.h5", "w.keras", "w.bin", "w.pt", "model.ckpt-1"])
def test_a_pickle_by_any_name_is_no_checkpoint(name, bomb, tmp_path, capsys):
    job = jobs.pretraining_flags(tmp_path)
    path = tmp_path / name
    path.write_bytes(bomb)
    with nothing_lost(tmp_path):
        assert jobs.pretrain(*job, f"--init_checkpoint={path}") == 2
    assert name in assert_one_clear_line(capsys.readouterr().err)


@pytest.mark.parametrize("ending", [".index", ".data-00000-of-00001", ".json"])
def test_a_pickle_among_a_checkpoints_files_is_refused(ending, bomb, tmp_path):
    prefix = checkpoint_store.save(
        str(tmp_path), 1, {"bert/a": np.zeros(9, "float32")}, {"records_seen": 1}, 0
    )
    pathlib.Path(prefix + ending).write_bytes(bomb)
    with pytest.raises(UserError):
        run_states.read_run_state(prefix)
        checkpoints.open_weights(prefix).read("bert/a")


# --- HDF5: plain arrays of the file itself, and nothing else ---

WEIGHT = "albert/pooler/weight:0"
H5_TRICKS = {
    "nothing": (lambda layer, other: None, None),
    "external link": (
        lambda layer, other: spoil(layer, WEIGHT, h5py.ExternalLink(other, "/secret")),
        "is not in this file",
    ),
    "external group": (
        lambda layer, other: spoil(layer, "albert", h5py.ExternalLink(other, "/")),
        "is not in this file",
    ),
    "external layer": (
        lambda layer, other: layer.file.__setitem__("z", h5py.ExternalLink(other, "/")),
        "z is not in this file",
    ),
    "pipe": (  # opening it would wait for ever
        lambda layer, other: spoil(layer, WEIGHT, h5py.ExternalLink(f"{other}.pipe", "/secret")),
        "is not in this file",
    ),
    "soft link": (
        lambda layer, other: spoil(layer, WEIGHT, h5py.SoftLink("/albert/elsewhere")),
        "is not in this file",
    ),
    "external storage": (
        lambda layer, other: spoil(layer, WEIGHT, dict(
            shape=(2, 2), dtype="f4", external=[(other, 0, 16)])),
        "is no array of this file",
    ),
    "virtual": (lambda layer, other: virtual(layer, other), "is no array of this file"),
    "references": (
        lambda layer, other: spoil(layer, WEIGHT, dict(data=[layer.ref], dtype=h5py.ref_dtype)),
        "is no array of numbers",
    ),
    "strings": (
        lambda layer, other: spoil(layer, WEIGHT, dict(data=["text"], dtype=h5py.string_dtype())),
        "is no array of numbers",
    ),
    "null": (
        lambda layer, other: spoil(layer, WEIGHT, h5py.Empty("f4")), "is no array of numbers",
    ),
    "no content": (
        lambda layer, other: spoil(layer, WEIGHT, dict(shape=(10**7, 10**7), dtype="f4")),
        "claims 400,000,000,000,000 bytes",
    ),
    "a bomb": (
        lambda layer, other: spoil(layer, WEIGHT, dict(
            data=np.zeros(10**6, "f4"), compression="gzip")),
        "is compressed",
    ),
    "names that are references": (
        lambda layer, other: layer.attrs.create("weight_names", [layer.ref], dtype=h5py.ref_dtype),
        "not a readable HDF5 file",
    ),
}


def spoil(layer, name, value):
    del layer[name]
    if isinstance(value, dict):
        layer.create_dataset(name, **value)
    else:
        layer[name] = value


def virtual(layer, other):
    layout = h5py.VirtualLayout(shape=(2, 2), dtype="f4")
    layout[:] = h5py.VirtualSource(other, "secret", shape=(2, 2))
    del layer[WEIGHT]
    layer.create_virtual_dataset(WEIGHT, layout)


@pytest.mark.parametrize("trick", H5_TRICKS)
def test_an_hdf5_file_gives_no_more_than_its_own_numbers(trick, tmp_path):
    do, message = H5_TRICKS[trick]
    other, path = str(tmp_path / "other.h5"), str(tmp_path / "tf_model.h5")
    os.mkfifo(f"{other}.pipe")
    with h5py.File(other, "w") as stream:
        stream["secret"] = np.full((2, 2), 7, "f4")
        stream.attrs["weight_names"] = [b"secret"]
    with h5py.File(path, "w") as stream:
        layer = stream.create_group("albert")
        layer[WEIGHT] = stream["elsewhere"] = np.ones((2, 2), "f4")
        layer.attrs["weight_names"] = [WEIGHT.encode()]
        stream.move("elsewhere", "albert/elsewhere")  # every group of the top is a layer
        do(layer, other)
    if message is None:
        shapes, read = hf_tensors.open_tensors(path)
        [name] = shapes
        np.testing.assert_array_equal(read(name), np.ones((2, 2)))
        return
    with pytest.raises(CheckpointError, match=message):
        hf_tensors.open_tensors(path)


# --- Sizes that lie ---


@pytest.mark.parametrize("length", [1 << 62, (1 << 64) - 1, 200_000_000])
def test_a_safetensors_header_of_absurd_length_is_refused_at_once(length, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{" + b" " * 64)
    config = AlbertConfig.from_json_file(write_config(tmp_path))
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        pretrained.open_tensors(str(path), config)


# --- Paths that lead elsewhere ---


@pytest.mark.parametrize("name", ["../out.safetensors", "/etc/out.safetensors", "a/b.safetensors",
                                  "..", "weights.bin"])
def test_shards_outside_their_directory_are_refused(name, tmp_path):
    (tmp_path / "in").mkdir()
    path = tmp_path / "in/model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"albert.pooler.weight": name}}))
    config = AlbertConfig.from_json_file(write_config(tmp_path))
    with pytest.raises(CheckpointError, match="is not a plain"):
        pretrained.open_tensors(str(path), config)


def test_a_vocabulary_that_a_checkpoints_record_names_is_not_opened(tmp_path, capsys):
    config = AlbertConfig.from_json_file(write_config(tmp_path))
    folder, pipe = tmp_path / "model", tmp_path / "elsewhere.txt"
    os.mkfifo(pipe)  # reading it would wait for ever
    folder.mkdir()
    pretrained.write_archive(str(folder), modeling.AlbertForSequenceClassification(config, 2))
    record = json.loads((folder / "model.ckpt-best.json").read_text())
    record["flags"] = {"vocab_file": str(pipe)}
    (folder / "model.ckpt-best.json").write_text(json.dumps(record))
    (tmp_path / "in.txt").write_text("w1\n")
    assert 2 == run_here(predict, f"--model={folder}", f"--input_file={tmp_path}/in.txt")
    assert "has no vocabulary" in assert_one_clear_line(capsys.readouterr().err)


@pytest.mark.parametrize("name", ["../glue", "/etc", "sst-2/../../x", "CoLA\0", ".."])
def test_a_task_is_one_of_those_known_and_never_a_path(name, tmp_path, capsys):
    job = jobs.classifier_flags(tmp_path, task_name=name)
    with nothing_lost(tmp_path):
        assert jobs.classify(*job, "--do_train") == 2
    assert_one_clear_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("guid", ["../../etc/passwd", "a\tb\nc\td", "\ud800", "\0", "=1+1", ""])
def test_ids_of_the_data_are_content_and_never_names_or_lines(guid, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    examples = [glue.Example(guid, "a", None, "0"), glue.Example("7", "a", None, "0")]
    before = snapshot(tmp_path)
    written = glue.write_predictions(
        FineTuningData("sst-2", {"test": examples}, ("0", "1")), {"logits": np.eye(2), "probabilities": np.eye(2)}, str(out)
    )
    assert not before and {os.path.dirname(path) for path in written} == {str(out)}
    assert set(snapshot(tmp_path)) == set(written)
    for path in written[1:]:
        lines = pathlib.Path(path).read_bytes().decode("utf-8").split("\n")
        assert len(lines) == 4 and all(line.count("\t") == 1 for line in lines[:3])


@pytest.mark.parametrize("name", ["metrics.jsonl", ".lock"])
def test_output_is_not_written_through_links_that_lie_in_the_directory(
    name, tmp_path, capsys
):
    job = jobs.pretraining_flags(tmp_path)
    victim = tmp_path / "victim"
    precious = '{"step": 0, "kind": "train"}\n'
    victim.write_text(precious)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(victim)
    assert jobs.pretrain(*job) == 2
    assert name in assert_one_clear_line(capsys.readouterr().err)
    assert victim.read_text() == precious


def test_published_files_replace_links_and_leave_what_they_point_to(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("best.json", "model.ckpt-1.json", "model.ckpt-1.index", "checkpoint"):
        (tmp_path / name).symlink_to(victim)
    files.write_sealed_json(str(tmp_path / "best.json"), {"step": 1})
    checkpoint_store.save(str(tmp_path), 1, {"bert/a": np.zeros(3, "float32")}, {}, 0)
    assert victim.read_text() == "precious"
    assert not any(p.is_symlink() for p in tmp_path.iterdir())


def test_clean_up_follows_no_link(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.x.tmp-abcdefgh").symlink_to(tmp_path / "precious")
    with temporary.temporary_dir(str(tmp_path / "run/x")):
        assert (tmp_path / "precious/file").exists()
    assert (tmp_path / "precious/file").exists()


# --- Modules of strangers ---


@pytest.fixture
def trap(tmp_path):
    """A SavedModel that writes a file when it is called, and one when it is loaded."""
    import tensorflow as tf

    class Trap(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = {"bert/a": tf.Variable(tf.ones([3]))}

        @tf.function(input_signature=[])
        def serve(self):
            tf.io.write_file(str(tmp_path / "owned"), "called")
            return {"x": tf.constant(1)}

    module = Trap()
    folder = tmp_path / "module"
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    (folder / "assets").mkdir(exist_ok=True)
    os.rename(write_config(tmp_path), folder / "assets/albert_config.json")
    return folder


def test_a_module_of_a_stranger_is_read_for_its_variables_and_neither_loaded_nor_called(
    trap, tmp_path, monkeypatch
):
    import tensorflow as tf

    def refuse(*_, **__):
        raise AssertionError("the graph was loaded")

    monkeypatch.setattr(tf.saved_model, "load", refuse)
    weights = pretrained.open_module(str(trap)).weights()
    np.testing.assert_array_equal(weights.read("bert/a"), np.ones(3))
    (trap / "saved_model.pb").write_bytes(b"\xff garbage, which nobody reads")
    np.testing.assert_array_equal(pretrained.open_any_weights(str(trap)).read("bert/a"), np.ones(3))
    assert not (tmp_path / "owned").exists()

"""The JAX backend gives the same results as TensorFlow, and its runs give the same guarantees.

test_distribution.py covers several devices and several processes on JAX.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import types

import jobs
import numpy as np
import pytest
from helpers import (
    LENGTH, PREDICTIONS, REPO, SIZES, VOCAB, assert_one_clear_line, metrics, pretraining_rows, run,
    run_here, write_config, write_pretraining_records, write_weights,
)
from record_files_made import write_records

from albert import engines, predict, run_pretraining
from albert.cli import flags, run_flags
from albert.errors import FlagError
from albert.formats import checkpoints
from albert.tasks.pretraining import PretrainingTask

pytest.importorskip("jax")

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PRETRAINING = "albert.run_pretraining"
# Commands run in sequence in one process with two devices, where TensorFlow can't be imported.
ON_JAX = """
import importlib, json, sys
sys.modules["tensorflow"] = None
from albert.cli import flags
for line in sys.stdin:
    module, *given = json.loads(line)
    command = importlib.import_module(module)
    print(flags.run_command(command.__doc__, command.define_flags, command.main, [module, *given]))
    sys.stdout.flush()
"""


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory):
    """Function that runs a module with flags on JAX and returns its exit code and log."""
    folder = tmp_path_factory.mktemp("on_jax")
    path = folder / "log.txt"
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"} | {
        "PYTHONPATH": str(REPO), "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0 "
        "--xla_llvm_disable_expensive_passes=true",
    }
    with open(path, "w") as log, subprocess.Popen(
        [sys.executable, "-c", ON_JAX], env=environment, text=True, stderr=log,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:

        def call(*command) -> tuple[int, str]:
            before = path.stat().st_size
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
            code = process.stdout.readline()
            said = path.read_text()[before:]
            assert code, said
            return int(code), said

        yield call


def losses(folder) -> list[float]:
    return [line["loss"] for line in metrics(folder) if line["kind"] == "train"]


def assert_close(folder, other, tolerance: float) -> None:
    """Checks that two runs logged the same steps, and the same numbers up to rounding."""
    for mine, expected in zip(metrics(folder), metrics(other), strict=True):
        assert (mine["step"], mine["kind"]) == (expected["step"], expected["kind"])
        for name, value in expected.items():
            if isinstance(value, float):
                close = pytest.approx(value, rel=tolerance, abs=tolerance)
                assert mine[name] == close, f"{name} of step {expected['step']}"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Flags of a run without dropout from given weights: it depends only on the data."""
    folder = tmp_path_factory.mktemp("job")
    sizes = SIZES | NO_DROPOUT
    return [
        *jobs.pretraining_flags(folder),
        f"--albert_config_file={write_config(folder, **sizes)}",
        f"--init_checkpoint={write_weights(folder / 'first', sizes)}",
        f"--input_file={write_pretraining_records(folder / 'train.tfrecord', 60)}",
        "--learning_rate=0.02", "--num_warmup_steps=2", "--log_steps=1", "--train_batch_size=8",
    ]


def write_equal_records(path) -> str:
    """Writes copies of one row: steps differ only in their dropout."""
    spec = PretrainingTask(LENGTH, PREDICTIONS).feature_spec()
    rows = [next(pretraining_rows(1, least=LENGTH))] * 8
    write_records(str(path), rows, spec, {"vocab_size": VOCAB})
    return str(path)


@pytest.fixture(scope="module")
def long(job, on_jax, tmp_path_factory):
    """A run of packed rows in micro-batches, 20 steps and saved at 10, and its log."""
    folder = tmp_path_factory.mktemp("long")
    flags = [
        *job, "--num_train_steps=20", "--keep_checkpoint_max=0", "--gradient_accumulation_steps=2",
        f"--output_dir={folder / 'out'}",
        f"--input_file={write_pretraining_records(folder / 'short', 80, least=6, most=6)}",
    ]
    code, log = on_jax(PRETRAINING, *flags)
    assert code == 0, log
    return jobs.Run(folder / "out", flags), log


@pytest.mark.slow
def test_a_run_goes_on_with_the_other_engine_and_another_number_of_devices(long, tmp_path, caplog):
    whole, log = long
    half = whole.copy(tmp_path / "half", step=10)
    assert jobs.pretrain(*half.flags) == 0
    assert_close(half.out, whole.out, 1e-5)
    assert len(losses(half.out)) == 20 and losses(half.out)[-1] < losses(half.out)[0] - 0.1
    for told in (log, caplog.text):
        assert "sequences: packed" in told


def test_what_jax_computes_is_what_tensorflow_computes_and_a_weight_that_no_loss_reaches_stays(
    job, on_jax, tmp_path
):
    """Also under decay: the pooler, where the records have no sentence objective."""
    spec, path = PretrainingTask(LENGTH, PREDICTIONS).feature_spec(), tmp_path / "none.tfrecord"
    write_records(str(path), pretraining_rows(60), spec,
                            {"vocab_size": VOCAB, "sentence_objective": "none"})
    settings = [*job, "--num_train_steps=4", "--optimizer=adamw", "--remat",
                "--mixed_precision=float16", f"--input_file={path}"]
    ours, theirs = tmp_path / "jax", tmp_path / "tensorflow"
    code, log = on_jax(PRETRAINING, *settings, f"--output_dir={ours}")
    assert code == 0, log
    assert jobs.pretrain(*settings, f"--output_dir={theirs}") == 0
    assert_close(ours, theirs, 2e-2)
    [first] = [flag.partition("=")[2] for flag in job if flag.startswith("--init_checkpoint")]
    before = jobs.tensors(first)
    for out in (ours, theirs):
        after = jobs.tensors(out / "model.ckpt-4")
        is_same = {n: np.array_equal(after[n], value) for n, value in before.items()}
        assert is_same["bert/pooler/dense/kernel"] and is_same["bert/pooler/dense/bias"]
        assert not is_same["bert/embeddings/word_embeddings"]


def test_dropout_differs_from_step_to_step_and_a_resumed_run_is_equal_to_the_bit(
    job, on_jax, tmp_path
):
    # The learning rate is 0 until step 4: the losses before it come from the same weights.
    flags = [
        *job, f"--albert_config_file={write_config(tmp_path)}", "--num_train_steps=6",
        f"--input_file={write_equal_records(tmp_path / 'equal.tfrecord')}",
        "--start_warmup_step=3", "--save_checkpoints_steps=2", "--keep_checkpoint_max=0",
    ]
    whole = jobs.Run(tmp_path / "whole", flags)
    code, log = on_jax(PRETRAINING, *flags, f"--output_dir={whole.out}")
    assert code == 0, log
    lines = [line for line in metrics(whole.out) if line["kind"] == "train"]
    assert len({line["loss"] for line in lines[:4]}) == 4
    for line in lines:  # these are means over whatever was computed
        parts = line["masked_lm_loss"] + line["sentence_order_loss"]
        assert line["loss"] == pytest.approx(parts, rel=1e-4)
    half = whole.copy(tmp_path / "half", step=2)
    code, log = on_jax(PRETRAINING, *half.flags)
    assert code == 0, log
    jobs.assert_same_run(half.out, whole.out, 6)


@pytest.mark.slow
def test_a_run_that_cannot_go_on_says_so_in_one_line(job, long, on_jax, tmp_path):
    bad = write_weights(tmp_path / "bad", SIZES | NO_DROPOUT)
    weights = jobs.tensors(bad)
    # Finite, so that they are opened, and the first step overflows.
    for prefix, value in ((bad, 1e38), (f"{bad}-nan", np.nan)):
        weights["bert/embeddings/word_embeddings"][:] = value
        checkpoints.write(prefix, weights)
    for given, code, message in (
        ([*long[0].flags, f"--init_checkpoint={bad}", "--save_checkpoints_steps=100"],
         3, "11 bad steps in a row"),
        ([*job, f"--init_checkpoint={bad}-nan"], 2, "holds NaN or infinity: the training diverged"),
        ([*job, "--train_batch_size=7"], 2, "--train_batch_size=7 cannot be divided by 2 replicas"),
        ([*job, "--use_tpu"], 2, "--use_tpu: JAX finds no TPU on this machine"),
    ):
        found, log = on_jax(PRETRAINING, *given, f"--output_dir={tmp_path / 'out'}")
        assert found == code and message in assert_one_clear_line(log), log
        assert not checkpoints.list_steps(str(tmp_path / "out"))


@pytest.mark.slow
def test_a_preempted_and_a_killed_run_go_on(job, tmp_path):
    long = [*job, "--engine=jax", f"--output_dir={tmp_path}"]
    with jobs.running(*long, "--num_train_steps=100000") as process:
        jobs.wait_for(tmp_path / "model.ckpt-10.index", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    step = max(checkpoints.list_steps(str(tmp_path)))
    with jobs.running(*long, "--num_train_steps=100000") as process:
        jobs.wait_for(tmp_path / f"model.ckpt-{step // 10 * 10 + 10}.index", process)
        process.kill()
        process.wait()
    killed_at = max(checkpoints.list_steps(str(tmp_path)))
    assert killed_at > step
    done = run(PRETRAINING, *long, f"--num_train_steps={killed_at + 5}")
    assert f"steps {killed_at} to {killed_at + 5}" in done.stderr


# === Fine-tuning and prediction ===

FINE_TUNINGS = {
    "run_classifier": (
        jobs.classifier_flags, "AlbertForSequenceClassification", {"num_labels": 2},
        ["--classifier_dropout=0", "--do_train", "--do_eval", "--do_predict"],
    ),
    "run_squad_v1": (jobs.squad_flags, "AlbertForQuestionAnswering", {}, []),
    "run_squad_v2": (jobs.squad_flags, "AlbertForBeamQuestionAnswering", {}, ["--dropout_prob=0"]),
    "run_race": (
        jobs.race_flags, "AlbertForMultipleChoice", {},
        ["--dropout_prob=0", "--do_train", "--do_eval"],
    ),
    "run_token_classifier": (
        jobs.token_flags, "AlbertForTokenClassification", {"num_labels": 3},
        ["--classifier_dropout=0", "--do_train", "--do_eval", "--do_predict"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FINE_TUNINGS)
def test_fine_tuning_and_predictions_are_those_of_tensorflow(name, on_jax, tmp_path):
    make_flags, kind, options, more = FINE_TUNINGS[name]
    flags, sizes = make_flags(tmp_path), SIZES | NO_DROPOUT | {"num_hidden_layers": 1}
    write_config(tmp_path, **sizes)
    first = write_weights(tmp_path / "first", sizes, kind, **options)
    flags += [*more, f"--init_checkpoint={first}", "--log_steps=1", "--learning_rate=0.001"]
    theirs, ours = tmp_path / "tensorflow", tmp_path / "jax"
    command = importlib.import_module(f"albert.{name}")
    assert jobs.command(command, *flags, f"--output_dir={theirs}") == 0
    code, log = on_jax(f"albert.{name}", *flags, f"--output_dir={ours}")
    assert code == 0, log
    assert sorted(os.listdir(ours)) == sorted(os.listdir(theirs))
    assert len(losses(ours)) >= 4
    assert_close(ours, theirs, 1e-4)
    [found, expected] = (jobs.tensors(checkpoints.newest_or_best(str(f))) for f in (ours, theirs))
    for tensor in expected:
        np.testing.assert_allclose(found[tensor], expected[tensor], atol=1e-4, err_msg=tensor)
    if name == "run_classifier":
        (tmp_path / "texts.txt").write_text("w1 w2\nw3\nw4 w5 w6 w7\n")
        question = [f"--model={theirs}", f"--input_file={tmp_path / 'texts.txt'}"]
        code, log = on_jax("albert.predict", *question, f"--output_file={tmp_path / 'jax.jsonl'}")
        assert code == 0, log
        assert run_here(predict, *question, f"--output_file={tmp_path / 'tf.jsonl'}") == 0
        answers = [
            [json.loads(line) for line in (tmp_path / f"{engine}.jsonl").read_text().splitlines()]
            for engine in ("jax", "tf")
        ]
        assert len(answers[0]) == 3
        for found, expected in zip(*answers, strict=True):
            assert found.keys() == expected.keys() and found["label"] == expected["label"]
            assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)


# === Refusals ===


def test_what_is_not_there_is_one_line_and_old_tpu_flags_are_answered_with_what_is(job, monkeypatch, caplog):
    for more, absent, backend, message in (
        (["--use_tpu", "--engine=tensorflow"], "", "", "--use_tpu needs --engine=jax"),
        (["--engine=jax", "--nouse_xla"], "", "", "--nouse_xla has no effect: JAX always compiles"),
        ([], "", "torch", "KERAS_BACKEND=torch: albert runs on"),
        (["--engine=jax"], "jax", "", r"not installed: install albert-keras\[jax\]"),
        (["--engine=tensorflow"], "tensorflow", "", "not installed: install tensorflow"),
    ):
        values = flags.parse(run_pretraining.define_flags, ["command", *job, *more])
        with monkeypatch.context() as patch, pytest.raises(FlagError, match=message):
            patch.setitem(sys.modules, absent, None)
            patch.setenv("KERAS_BACKEND", backend)
            run_flags.check_device_flags(values)
    old = ["--tpu_name=mine", "--tpu_zone=here", "--gcp_project=ours", "--num_tpu_cores=8"]
    values = flags.parse(run_pretraining.define_flags, ["command", *job, *old])
    run_flags.check_device_flags(values)
    [record] = caplog.records
    assert "--tpu_name, --tpu_zone, --gcp_project, --num_tpu_cores: no effect" in record.message
    assert "on the TPU machine itself, with --use_tpu" in record.message


def test_num_gpus_are_those_of_each_machine(monkeypatch):
    import jax

    from albert.training import jax_engine

    def chosen(count):
        flags = {"use_tpu": False, "num_gpus": count, "distribution_strategy": "multi_worker"}
        devices = jax_engine.devices_of(types.SimpleNamespace(**flags))
        return [(device.platform, device.id) for device in devices]

    gpus, cpus = (  # of two machines
        [types.SimpleNamespace(platform=name, process_index=i // n, id=i) for i in range(2 * n)]
        for name, n in (("gpu", 4), ("cpu", 2))
    )
    monkeypatch.setattr(jax, "devices", lambda kind=None: cpus if kind == "cpu" else gpus)
    monkeypatch.setattr(jax, "local_devices", lambda: gpus[4:])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert chosen(None) == [("gpu", i) for i in range(8)]
    assert chosen(2) == [("gpu", i) for i in (0, 1, 4, 5)]
    assert chosen(0) == [("cpu", 0), ("cpu", 2)]
    with pytest.raises(FlagError, match="--num_gpus=5: this machine has 4"):
        chosen(5)


# Entry points of the package that need Keras, and one that does not.
ENTRIES = """
import albert, keras
from albert.errors import FlagError
for entry in (
    lambda: albert.from_pretrained("small_en"), lambda: albert.AlbertModel,
    lambda: __import__("albert.optimization"),
):
    try:
        entry()
        print("taken")
    except FlagError as error:
        print(error)
print(albert.AlbertTokenizer.from_pretrained("small_en")(["a"], return_tensors="np").input_ids.shape)
"""


def test_another_backend_is_refused_in_one_line_in_python(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "numpy")
    *errors, shape = jobs.python(ENTRIES).splitlines()
    message = "Keras was imported with the backend numpy: albert runs on"
    assert len(errors) == 3 and all(message in line for line in errors), errors
    assert shape == "(1, 3)"


def test_the_default_backend_is_one_that_is_installed(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    for chosen, installed, expected in (
        ("", "tensorflow jax", "tensorflow"),
        ("", "jax", "jax"),
        ("jax", "tensorflow jax", "jax"),
        ("jax", "tensorflow", "KERAS_BACKEND=jax: it is not installed"),
        ("torch", "tensorflow jax", "KERAS_BACKEND=torch: albert runs on"),
        ("", "", "KERAS_BACKEND=tensorflow: it is not installed"),
    ):
        monkeypatch.setenv("KERAS_BACKEND", chosen)
        monkeypatch.setattr(engines, "is_installed", installed.split().__contains__)
        if expected in engines.ENGINES:
            engines.require_backend()
            assert os.environ["KERAS_BACKEND"] == expected
        else:
            with pytest.raises(FlagError, match=expected):
                engines.require_backend()

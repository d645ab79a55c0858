"""The JAX engine: what TensorFlow computes, JAX computes; what a run promises, it promises there.

Several devices and several processes on JAX: test_distribution.py.
"""

import json
import os
import re
import signal
import subprocess
import sys
import types

import numpy as np
import pytest
import jobs
from helpers import (
    REPO,
    SIZES,
    assert_one_clear_line,
    metrics,
    run,
    write_config,
    write_pretraining_records,
    write_weights,
)

from albert import engines, run_pretraining
from albert.cli import flags, run_flags
from albert.errors import FlagError
from albert.formats import checkpoint_files, checkpoints

pytest.importorskip("jax")

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PRETRAINING = "albert.run_pretraining"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Flags of a run without dropout from given weights: it depends on nothing but the data."""
    folder = tmp_path_factory.mktemp("job")
    sizes = SIZES | NO_DROPOUT | {"num_hidden_layers": 3}
    return [
        *jobs.pretraining_flags(folder),
        f"--albert_config_file={write_config(folder, **sizes)}",
        f"--init_checkpoint={write_weights(folder / 'first', sizes)}",
        f"--input_file={write_pretraining_records(folder / 'train.tfrecord', 60)}",
        "--learning_rate=0.02", "--num_warmup_steps=2", "--log_steps=1", "--train_batch_size=8",
    ]


def do(*arguments, **options):
    done = run(PRETRAINING, *map(str, arguments), **options)
    assert done.returncode == 0, done.stderr
    return done


def losses(folder) -> list[float]:
    return [line["loss"] for line in metrics(folder) if line["kind"] == "train"]


def assert_close(folder, other, tolerance: float) -> None:
    """Checks that two runs logged the same steps, and the same numbers up to rounding."""
    ours, theirs = metrics(folder), metrics(other)
    steps = [[(line["step"], line["kind"]) for line in lines] for lines in (ours, theirs)]
    assert steps[0] == steps[1]
    for mine, expected in zip(ours, theirs, strict=True):
        for name, value in expected.items():
            if isinstance(value, float):
                np.testing.assert_allclose(
                    mine[name], value, rtol=tolerance, atol=tolerance,
                    err_msg=f"{name} of step {expected['step']}",
                )


def test_losses_of_fifty_steps_are_those_of_tensorflow(job, tmp_path):
    long = [*job, "--num_train_steps=50", "--save_checkpoints_steps=50"]
    for engine in ("tensorflow", "jax"):
        do(*long, f"--engine={engine}", f"--output_dir={tmp_path / engine}")
    found, expected = losses(tmp_path / "jax"), losses(tmp_path / "tensorflow")
    assert len(found) == 50 and expected[-1] < expected[0] - 0.2
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("first, then", [("tensorflow", "jax"), ("jax", "tensorflow")])
def test_a_run_goes_on_with_the_other_engine(first, then, job, tmp_path):
    long = [*job, "--num_train_steps=40", "--save_checkpoints_steps=20", "--do_eval"]
    do(*long, f"--engine={first}", f"--output_dir={tmp_path / 'whole'}")
    both = tmp_path / "both"
    do(*long, f"--engine={first}", "--until_step=20", f"--output_dir={both}")
    assert list(checkpoints.list_steps(str(both))) == [20]
    do(*long, f"--engine={then}", f"--output_dir={both}")
    assert_close(both, tmp_path / "whole", 1e-5)


# What a command does, in a process where TensorFlow cannot be imported.
WITHOUT_TENSORFLOW = """
import runpy, sys
sys.modules["tensorflow"] = None
runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
"""


def without_tensorflow(module: str, *arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW.replace("sys.argv[1]", repr(module))]
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    environment.pop("KERAS_BACKEND", None)
    done = subprocess.run(
        [*command, *map(str, arguments)], env=environment, text=True, capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_nothing_of_a_run_needs_tensorflow(job, tmp_path):
    flags = [*job, "--do_eval", "--num_train_steps=10", f"--output_dir={tmp_path}"]
    # JAX is taken unasked, and the first weights lie in a file of TensorFlow's kind.
    without_tensorflow(PRETRAINING, *flags)
    assert (tmp_path / "model.ckpt-10.index").exists()
    assert (tmp_path / "eval_results.json").exists() and list((tmp_path / "summaries").iterdir())
    # With TensorFlow the run goes on.
    do(*flags, "--num_train_steps=20")
    assert (tmp_path / "model.ckpt-20.index").exists()


@pytest.mark.slow
def test_a_resumed_run_is_equal_to_the_bit(job, tmp_path):
    dropout = write_config(tmp_path)
    long = [*job, "--engine=jax", f"--albert_config_file={dropout}", "--init_checkpoint=",
            "--num_train_steps=40", "--save_checkpoints_steps=10", "--keep_checkpoint_max=0"]
    do(*long, f"--output_dir={tmp_path / 'whole'}")
    do(*long, "--until_step=20", f"--output_dir={tmp_path / 'parts'}")
    do(*long, f"--output_dir={tmp_path / 'parts'}")
    jobs.assert_same_run(tmp_path / "parts", tmp_path / "whole", 40)

    killed = [*long, f"--output_dir={tmp_path / 'killed'}"]
    with jobs.running(*killed) as process:
        jobs.wait_for(tmp_path / "killed/model.ckpt-10.index", process)
        process.kill()
        process.wait()
    do(*killed)
    jobs.assert_same_run(tmp_path / "killed", tmp_path / "whole", 40)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_devices(job, tmp_path):
    long = [*job, "--engine=jax", "--num_train_steps=20", "--save_checkpoints_steps=10"]
    do(*long, f"--output_dir={tmp_path / 'whole'}")
    parts = [*long, f"--output_dir={tmp_path / 'parts'}"]
    do(*parts, "--until_step=10", "--num_virtual_devices=2")
    do(*parts, "--num_virtual_devices=8")
    assert_close(tmp_path / "parts", tmp_path / "whole", 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--gradient_accumulation_steps=4"],
        ["--remat", "--attn_implementation=fused"],
        ["--mixed_precision=float16"],
        ["--optimizer=adamw"],
        ["--depth_schedule=1:3,2:5"],
        ["--skip_loss_spikes"],
    ],
    ids=lambda flags: flags[0].strip("-"),
)
def test_settings_do_what_they_do_with_tensorflow(flags, job, tmp_path):
    for engine in ("tensorflow", "jax"):
        do(*job, "--num_train_steps=8", *flags, f"--engine={engine}",
           f"--output_dir={tmp_path / engine}")
    rounding = 2e-2 if "--mixed_precision=float16" in flags else 1e-4
    assert_close(tmp_path / "jax", tmp_path / "tensorflow", rounding)


@pytest.mark.slow
def test_short_rows_are_packed_as_with_tensorflow(job, tmp_path):
    short = write_pretraining_records(tmp_path / "short.tfrecord", 80, least=4, most=6)
    for engine in ("tensorflow", "jax"):
        done = do(*job, f"--input_file={short}", "--num_train_steps=8", f"--engine={engine}",
                  f"--output_dir={tmp_path / engine}")
        assert "rows: packed" in done.stderr
    assert_close(tmp_path / "jax", tmp_path / "tensorflow", 1e-4)


# === What the trainer promises ===


@pytest.mark.slow
def test_a_preempted_run_saves_and_goes_on(job, tmp_path):
    long = [*job, "--engine=jax", f"--output_dir={tmp_path}"]
    with jobs.running(*long, "--num_train_steps=100000") as process:
        jobs.wait_for(tmp_path / "model.ckpt-10.index", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    step = max(checkpoints.list_steps(str(tmp_path)))
    done = do(*long, f"--num_train_steps={step + 5}")
    assert f"steps {step} to {step + 5}" in done.stderr


@pytest.mark.slow
def test_a_diverged_run_stops_with_code_3_and_keeps_what_was_good(job, tmp_path):
    bad = write_weights(tmp_path / "bad", SIZES | NO_DROPOUT | {"num_hidden_layers": 3})
    weights = jobs.tensors(bad)
    weights["bert/embeddings/word_embeddings"][:] = np.nan
    checkpoint_files.write(bad, weights)
    done = run(PRETRAINING, *job, "--engine=jax", f"--init_checkpoint={bad}",
               f"--output_dir={tmp_path / 'out'}")
    assert done.returncode == 3
    assert "diverged" in assert_one_clear_line(done.stderr)
    assert not checkpoints.list_steps(str(tmp_path / "out"))


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
def test_fine_tuning_computes_what_it_does_with_tensorflow(name, tmp_path):
    make_flags, kind, options, more = FINE_TUNINGS[name]
    flags = make_flags(tmp_path)
    sizes = SIZES | NO_DROPOUT | {"num_hidden_layers": 1}
    write_config(tmp_path, **sizes)
    first = write_weights(tmp_path / "first", sizes, kind, **options)
    for engine in ("tensorflow", "jax"):
        done = run(f"albert.{name}", *flags, *more, f"--init_checkpoint={first}", "--log_steps=1",
                   "--learning_rate=0.001", f"--engine={engine}",
                   f"--output_dir={tmp_path / engine}")
        assert done.returncode == 0, done.stderr
    ours, theirs = tmp_path / "jax", tmp_path / "tensorflow"
    assert sorted(os.listdir(ours)) == sorted(os.listdir(theirs))
    assert len(losses(ours)) >= 4
    assert_close(ours, theirs, 1e-4)
    [found, expected] = (jobs.tensors(checkpoints.newest_or_best(str(f))) for f in (ours, theirs))
    for tensor in expected:
        np.testing.assert_allclose(found[tensor], expected[tensor], atol=1e-4, err_msg=tensor)


@pytest.mark.slow
def test_predictions_are_those_of_tensorflow(tmp_path):
    flags = jobs.classifier_flags(tmp_path)
    done = run("albert.run_classifier", *flags, "--do_train")
    assert done.returncode == 0, done.stderr
    (tmp_path / "texts.txt").write_text("w1 w2\nw3\nw4 w5 w6 w7\n")
    answers = {}
    for engine in ("tensorflow", "jax"):
        out = tmp_path / f"{engine}.jsonl"
        done = run("albert.predict", f"--model={tmp_path / 'out'}", f"--output_file={out}",
                   f"--input_file={tmp_path / 'texts.txt'}", env={"KERAS_BACKEND": engine})
        assert done.returncode == 0, done.stderr
        answers[engine] = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(answers["jax"]) == 3
    for found, expected in zip(answers["jax"], answers["tensorflow"], strict=True):
        assert found.keys() == expected.keys() and found["label"] == expected["label"]
        assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)


# === What cannot be ===


@pytest.mark.parametrize(
    "flags, environment, message",
    [
        (["--use_tpu"], {}, "--use_tpu: JAX finds no TPU on this machine"),
        (["--use_tpu", "--engine=tensorflow"], {}, "--use_tpu needs --engine=jax"),
        ([], {"KERAS_BACKEND": "torch"}, "KERAS_BACKEND=torch: albert runs on"),
        (["--engine=jax", "--nouse_xla"], {}, "--nouse_xla has no effect: JAX always compiles"),
        (["--engine=jax", "--train_batch_size=6", "--num_virtual_devices=4"], {},
         "--train_batch_size=6 cannot be divided by 4 replicas"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value else None,
)
def test_what_is_not_there_is_refused_in_one_line(flags, environment, message, job, tmp_path):
    done = run(PRETRAINING, *job, *flags, f"--output_dir={tmp_path}", env=environment)
    assert done.returncode == 2, done.stderr
    assert message in assert_one_clear_line(done.stderr)
    assert not list(tmp_path.glob("model.ckpt*"))


def test_num_gpus_are_those_of_each_machine(monkeypatch):
    import jax

    from albert.training import jax_devices

    def devices(platform, count):
        return [
            types.SimpleNamespace(platform=platform, process_index=i // count, id=i)
            for i in range(2 * count)
        ]

    def chosen(count):
        values = types.SimpleNamespace(
            use_tpu=False, num_gpus=count, distribution_strategy="multi_worker"
        )
        return [(d.platform, d.id) for d in jax_devices.chosen_devices(values)]

    gpus, cpus = devices("gpu", 4), devices("cpu", 2)
    monkeypatch.setattr(jax, "devices", lambda kind=None: cpus if kind == "cpu" else gpus)
    monkeypatch.setattr(jax, "local_devices", lambda: gpus[4:])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert chosen(None) == [("gpu", i) for i in range(8)]
    assert chosen(2) == [("gpu", i) for i in (0, 1, 4, 5)]
    assert chosen(0) == [("cpu", 0), ("cpu", 2)]
    with pytest.raises(FlagError, match="--num_gpus=5: this machine has 4"):
        chosen(5)


@pytest.mark.parametrize("engine, package", [("jax", "albert[jax]"), ("tensorflow", "tensorflow")])
def test_an_engine_that_is_not_installed_is_refused_in_one_line(engine, package, job, monkeypatch):
    monkeypatch.setitem(sys.modules, engine, None)
    values = flags.parse(run_pretraining.define_flags, ["command", *job, f"--engine={engine}"])
    with pytest.raises(FlagError, match="not installed: install " + re.escape(package)):
        run_flags.check_device_flags(values)


# Every way into the package that needs Keras.
ENTRIES = """
import albert
from albert.errors import FlagError
for entry in (
    lambda: albert.open_session("small_en"), lambda: albert.from_pretrained("small_en"),
    lambda: albert.AlbertModel, lambda: __import__("albert.modeling"),
    lambda: __import__("albert.optimization"), lambda: albert.HubLayer,
):
    try:
        entry()
        print("taken")
    except FlagError as error:
        print(error)
print(albert.AlbertTokenizer.from_pretrained("small_en")("a")["input_ids"].shape)
"""


@pytest.mark.parametrize(
    "backend, before, message",
    [
        ("torch", "", "KERAS_BACKEND=torch: albert runs on the tensorflow and jax backends"),
        ("tensorfow", "", "KERAS_BACKEND=tensorfow: albert runs on"),
        ("numpy", "import keras", "Keras was imported with the backend numpy: albert runs on"),
    ],
)
def test_another_backend_is_refused_in_one_line_in_python(backend, before, message):
    done = subprocess.run(
        [sys.executable, "-c", before + ENTRIES], capture_output=True, text=True,
        env=os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(REPO)},
    )
    *errors, shape = done.stdout.splitlines()
    assert len(errors) == 6 and all(message in line for line in errors), done.stdout + done.stderr
    assert shape == "(1, 3)"  # a tokenizer needs no Keras


@pytest.mark.parametrize(
    "settings, installed, expected",
    [
        (None, "tensorflow jax", "tensorflow"),
        ("tensorflow", "jax", "jax"),  # Keras writes tensorflow there by itself
        ("jax", "tensorflow jax", "jax"),
        ("torch", "tensorflow jax", "the backend torch: albert runs on"),
        (None, "", "tensorflow: it is not installed"),
    ],
)
def test_the_default_backend_is_that_of_keras_settings_or_one_that_is_installed(
    settings, installed, expected, tmp_path, monkeypatch
):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", "")
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setattr(engines, "is_installed", lambda engine: engine in installed.split())
    if settings:
        (tmp_path / "keras.json").write_text(json.dumps({"backend": settings}))
    if expected in engines.ENGINES:
        engines.require_backend()
        assert os.environ["KERAS_BACKEND"] == expected
    else:
        with pytest.raises(FlagError, match=expected):
            engines.require_backend()


def test_the_tpu_flags_of_the_original_are_answered_with_how_it_is_done_now(job, caplog):
    old = ["--tpu_name=mine", "--tpu_zone=here", "--gcp_project=ours", "--num_tpu_cores=8"]
    values = flags.parse(run_pretraining.define_flags, ["command", *job, *old])
    run_flags.check_device_flags(values)
    [record] = caplog.records
    assert "--tpu_name, --tpu_zone, --gcp_project, --num_tpu_cores: no effect" in record.message
    assert "on the TPU machine itself, with --use_tpu" in record.message

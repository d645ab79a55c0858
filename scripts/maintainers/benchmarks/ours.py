"""Our side of the benchmarks: models on either backend, new processes, and text and records on one core."""

import functools
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import serve


def prepare(spec):
    if spec["work"] in OF_ITSELF:
        return OF_ITSELF[spec["work"]](spec)
    from albert import engines

    is_jax = spec.get("engine") == "jax"
    if is_jax and spec.get("device") != "gpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    engines.start("jax" if is_jax else "tensorflow")
    import keras

    if not is_jax:
        import tensorflow as tf

        if spec.get("device") != "gpu":
            tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(spec["threads"])
    policy = spec.get("precision", "float32")
    keras.config.set_dtype_policy(f"mixed_{policy}" if policy == "bfloat16" else "float32")
    work = {"inference": _inference, "pretrain": _pretrain, "finetune": _finetune, "predict": _predict}
    return work[spec["work"]](spec, serve.load_rows(spec))


def _model_inputs(rows):
    return {name: rows[name] for name in ("input_ids", "input_mask", "segment_ids")}


# --- Models ---


def _inference(spec, rows):
    import keras
    from keras import ops

    import albert

    names = ("sequence_output", "pooled_output")
    if spec.get("is_session"):
        compute, batch = _session_model(spec, "AlbertModel"), _model_inputs(rows)
    else:
        model = albert.AlbertModel.from_pretrained(spec["model"])

        def outputs_of(batch):
            outputs = model(batch)
            return {name: outputs[name] for name in names}

        if keras.backend.backend() == "jax":
            import jax

            @jax.jit
            def with_weights(values, batch):
                with keras.StatelessScope(list(zip(model.variables, values, strict=True))):
                    return outputs_of(batch)

            compute = functools.partial(with_weights, [v.value for v in model.variables])
        else:
            import tensorflow as tf

            compute = tf.function(outputs_of, jit_compile=bool(spec.get("use_xla")))
        batch = {name: ops.convert_to_tensor(value) for name, value in _model_inputs(rows).items()}

    def turn():
        found = compute(batch)
        return {name: ops.convert_to_numpy(ops.cast(found[name], "float32")) for name in names}

    outputs = turn()
    return turn, outputs | {
        "sequence_output": outputs["sequence_output"] * rows["input_mask"][..., None]}


def _session_model(spec, class_name):
    """Returns what a session computes with."""
    from albert.formats import pretrained
    from albert.inference.session import AnsweringSession

    source = pretrained.open_path(spec["model"])
    return AnsweringSession(source, None, dtype=spec["precision"]).load(class_name)


def _run_config(spec):
    from albert.training.run import RunConfig

    names = ("use_xla", "pack_rows", "pad_to_max_seq_length")
    return RunConfig("", num_train_steps=10**6, mixed_precision=spec.get("precision", "float32"),
                     **{"use_xla": False} | {name: spec[name] for name in names if name in spec})


def _trainer(spec, task):
    """Returns (a training function of an iterator and a count, the run's settings)."""
    from albert.formats import pretrained
    from albert.optimization import OptimizerConfig
    from albert.training.run import TrainState, current

    run, source = _run_config(spec), pretrained.open_path(spec["model"])
    # The learning rate is so low that an epoch's losses do not depend on the order of its batches.
    state = TrainState(task, source.config, run, OptimizerConfig("adamw", 1e-9, 10**6, 0))
    pretrained.assign(state.model, source.weights())
    step = current().train_step(task, state, run)
    return lambda iterator, count: np.stack([np.asarray(step(next(iterator))) for _ in range(count)]), run


def _pretrain(spec, rows):
    from keras import ops

    from albert.tasks.pretraining import PretrainingTask
    from albert.training import steps

    length, predictions = rows["input_ids"].shape[1], rows["masked_lm_positions"].shape[1]
    train, _ = _trainer(spec, PretrainingTask(length, predictions))
    batch = dict(rows) | {"is_real_example": rows["input_mask"][:, 0]}
    if spec.get("engine") == "jax":
        batches = itertools.repeat({name: ops.convert_to_tensor(x) for name, x in batch.items()})
    else:
        import tensorflow as tf

        batches = iter(tf.data.Dataset.from_tensors(batch).repeat().prefetch(4))
    loss = train(batches, 1)[0, steps.LOSS]
    return lambda: train(batches, spec.get("steps_per_turn", 1)), {"loss": loss}


def _classification(spec, rows):
    """Returns a task and its records, as the commands would make them."""
    from albert.records.record_files import RecordsInMemory
    from albert.tasks.classification import ClassificationTask

    length, labels = rows["input_ids"].shape[1], int(rows["label_ids"].max()) + 1
    task = ClassificationTask("benchmark", length, tuple(map(str, range(labels))), 0.0)
    examples = ({name: value[i] for name, value in rows.items()} | {"is_real_example": 1}
                for i in range(len(rows["label_ids"])))
    return task, RecordsInMemory(examples, task.feature_spec(), "examples")


def _finetune(spec, rows):
    from albert.training import steps
    from albert.training.run import current, row_options

    task, source = _classification(spec, rows)
    train, run = _trainer(spec, task)
    size, features = spec["batch_size"], task.feature_spec()
    batches = iter(current().train_batches(
        source, features, batch_size=size, vocab_size=spec["vocab_size"], seed=1,
        **row_options(run, features, source, size)))

    def turn():
        return train(batches, len(rows["label_ids"]) // size)[:, steps.LOSS]

    return turn, {"loss": turn().mean()}


def _predict(spec, rows):
    if spec.get("is_session"):
        return _predict_by_session(spec, rows)
    from albert.formats import pretrained
    from albert.training import evaluate
    from albert.training.run import current, row_options

    task, source = _classification(spec, rows)
    opened, run, features = pretrained.open_path(spec["model"]), _run_config(spec), task.feature_spec()
    model, _ = evaluate.load_model(task, opened.config, run, opened.weights())
    batches = current().eval_batches(
        source, features, batch_size=spec["batch_size"], vocab_size=spec["vocab_size"],
        **row_options(run, features, source, spec["batch_size"]))
    step = current().eval_step(task, model, batches)

    def turn():
        logits = np.concatenate([np.asarray(step(batch)[3]["logits"]) for batch in batches])
        return logits[: len(rows["label_ids"])]

    return turn, {"logits": turn()}


def _predict_by_session(spec, rows):
    """Predicts as a session does: sorted by length, each batch as long as its longest text."""
    from albert.inference import predictors

    compute = _session_model(spec, "AlbertForSequenceClassification")
    texts = [{name: value[i, :length] for name, value in _model_inputs(rows).items()}
             for i, length in enumerate(rows["input_mask"].sum(axis=1))]

    def turn():
        found = {}
        for indices, batch in predictors.batches(texts, spec["batch_size"]):
            found |= zip(indices, compute(batch)["logits"], strict=True)
        return np.stack([found[i] for i in range(len(texts))])

    return turn, {"logits": turn()}


# --- New processes, text and records ---

TEXT = "The ship left the harbour at dawn, and nobody on the quay knew when she would return.\n"
SESSION = """
import json, sys
import albert
print(json.dumps(albert.open_session(sys.argv[1]).classify(sys.argv[2])))
"""


def _first_answer(spec):
    arguments = ["-m", "albert.predict", f"--model={spec['model']}"]
    if spec["by"] == "session":
        arguments = ["-c", SESSION, spec["model"], TEXT.strip()]

    def turn():
        done = subprocess.run([sys.executable, *arguments], input=TEXT, stdout=subprocess.PIPE, text=True,
                              check=True)
        return list(json.loads(done.stdout)["probabilities"].values())

    return turn, {"probabilities": turn()}


def _tokenize(spec):
    from albert.tokenization import FullTokenizer

    tokenizer, texts = FullTokenizer(None, True, spec["spm_model_file"]), serve.read_lines(spec)
    ids = [i for row in tokenizer.encode_batch(texts) for i in row]
    return lambda: tokenizer.encode_batch(texts), {"ids": ids}


def _make_records(spec):
    from albert import create_pretraining_data
    from albert.cli import flags
    from albert.records import manifests

    output = spec["outputs"] + ".tfrecord"
    argv = ["create_pretraining_data", f"--input_file={spec['text']}", f"--output_file={output}",
            f"--spm_model_file={spec['spm_model_file']}", "--max_seq_length=128", "--num_processes=1",
            "--dupe_factor=5", "--short_seq_prob=0"]

    def turn():
        if flags.run_command("", create_pretraining_data.define_flags, create_pretraining_data.main,
                             argv, takes_arguments=True):
            raise RuntimeError("create_pretraining_data failed")

    turn()
    return turn, {"records": manifests.Manifest.read(output).records}


OF_ITSELF = {"first_answer": _first_answer, "tokenize": _tokenize, "make_records": _make_records}


def _gpu_peak_bytes() -> int:
    import keras

    if keras.backend.backend() == "tensorflow":
        return serve.tensorflow_gpu_peak_bytes()
    import jax

    return jax.local_devices()[0].memory_stats()["peak_bytes_in_use"]


serve.serve(prepare, _gpu_peak_bytes)

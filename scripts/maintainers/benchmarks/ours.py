"""Our side of the model benchmarks, on either backend: inference, training steps, fine-tuning."""

import itertools
import os
import time

import numpy as np
import serve


def prepare(spec):
    from albert.cli import engine_start

    if not spec.get("onednn", True):
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    if _is_jax(spec) and spec.get("device") != "gpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    engine_start.start(_engine(spec))
    import keras

    if not _is_jax(spec):
        import tensorflow as tf

        if spec.get("device") != "gpu":
            tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(spec["threads"])
    policy = spec.get("precision", "float32")
    keras.config.set_dtype_policy(policy if policy == "float32" else f"mixed_{policy}")
    work = {
        "inference": _inference, "pretrain": _pretrain, "finetune": _finetune, "predict": _predict,
    }
    return work[spec["work"]](spec, serve.load_rows(spec))


def _engine(spec) -> str:
    return spec.get("engine", "tensorflow")


def _is_jax(spec) -> bool:
    return _engine(spec) == "jax"


def _model_inputs(rows):
    return {name: rows[name] for name in ("input_ids", "input_mask", "segment_ids")}


def _inference(spec, rows):
    from keras import ops

    import albert
    from albert.inference.compiled_call import compiled_function

    names = ("sequence_output", "pooled_output")
    if spec.get("is_onnx"):
        compute, inputs = _onnx_file(spec, "encoder"), _model_inputs(rows)

        def answer():
            found = compute(inputs)
            return {name: found[name] for name in names}

        outputs = answer()
        masked = outputs["sequence_output"] * rows["input_mask"][..., None]
        return answer, outputs | {"sequence_output": masked}
    model = albert.AlbertModel.from_pretrained(
        spec["model"], attn_implementation=spec.get("attn_implementation", "eager")
    )

    def outputs_of(batch):
        outputs = model(batch)
        return {name: outputs[name] for name in names}

    compute = outputs_of if spec.get("is_called") else compiled_function(outputs_of, model.variables)
    if spec.get("is_constant"):
        compute = _with_constants(outputs_of, model.variables)
    if spec.get("use_xla") and not _is_jax(spec):
        import tensorflow as tf

        compute = tf.function(outputs_of, jit_compile=True)
    batch = {name: ops.convert_to_tensor(value) for name, value in _model_inputs(rows).items()}

    def turn():
        found = {name: ops.cast(value, "float32") for name, value in compute(batch).items()}
        return {name: ops.convert_to_numpy(value) for name, value in found.items()}

    outputs = turn()
    outputs["sequence_output"] = outputs["sequence_output"] * rows["input_mask"][..., None]
    return turn, outputs


def _with_constants(function, variables):
    """Returns a function's graph with its weights as constants, which oneDNN can pack once."""
    import keras
    import tensorflow as tf

    arrays = [np.asarray(variable.value) for variable in variables]

    def compute(batch):
        pairs = list(zip(variables, map(tf.constant, arrays), strict=True))
        with keras.StatelessScope(state_mapping=pairs):
            return function(batch)

    return tf.function(compute, reduce_retracing=True, autograph=False)


def _onnx_file(spec, head):
    """Exports the model with export_model and opens the file; int8 if the specification says so."""
    import albert
    from albert.export import model_conversion
    from albert.formats import pretrained
    from albert.formats.model_classes import EXPORT_HEADS
    from albert.inference import onnx_file

    kind = EXPORT_HEADS[head]
    model = getattr(albert, kind.name).from_pretrained(spec["model"])
    weights = pretrained.open_path(spec["model"]).weights()
    content = model_conversion.to_onnx(model, kind, weights, None, spec.get("is_int8", False))
    return onnx_file.OnnxFile(content, spec["threads"])


def _run_config(spec):
    from albert.training.run import RunConfig

    return RunConfig(
        "", num_train_steps=10**6, use_xla=spec.get("use_xla", False),
        mixed_precision=spec.get("precision", "float32"), remat=spec.get("remat", False),
        gradient_accumulation_steps=spec.get("gradient_accumulation_steps", 1),
        attn_implementation=spec.get("attn_implementation", "eager"),
        pack_rows=spec.get("pack_rows", False),
        pad_to_max_seq_length=spec.get("pad_to_max_seq_length", False),
    )


def _train_steps(spec, task):
    """Returns (the steps, a training function of an iterator and a count, the run's settings)."""

    from albert.formats import pretrained
    from albert.optimization import OptimizerConfig
    from albert.training import steps
    from albert.training.current_engine import current
    from albert.training.run import TrainState

    run = _run_config(spec)
    if layers := spec.get("layer_engine"):
        current().layer_engine = lambda use_xla: layers
    source = pretrained.open_path(spec["model"])
    # The learning rate is so low that an epoch's losses do not depend on the order of its batches.
    state = TrainState(task, source.config, run, OptimizerConfig("adamw", 1e-9, 10**6, 0))
    pretrained.assign(state.model, source.weights())
    train = steps.compiled_step(task, state, run)

    def go(iterator, count):
        return np.stack([np.asarray(train(iterator)) for _ in range(count)])

    return train, go, run


def _pretrain(spec, rows):
    from albert.records import packing
    from albert.tasks.pretraining import PretrainingTask
    from albert.training import steps

    length, predictions = rows["input_ids"].shape[1], rows["masked_lm_positions"].shape[1]
    train, go, run = _train_steps(spec, PretrainingTask(length, predictions))
    batch = dict(rows) | {"is_real_example": rows["input_mask"][:, 0]}
    if "records" in spec:
        iterator = iter(_read_batches(spec, length, predictions))
    elif run.pack_rows:  # repacked each time, as in a run
        iterator = _iterator(spec, lambda: packing.pack_rows(batch, 1, [length]))
    else:
        iterator = _iterator(spec, lambda: batch)
    loss = go(iterator, 1)[0, steps.LOSS]
    if "steps" in spec:
        return _timed_apart(train, iterator, spec["steps"]), {"loss": loss}
    return lambda: go(iterator, spec.get("steps_per_turn", 1)), {"loss": loss}


def _iterator(spec, make):
    """Returns an endless iterator of the batch that `make` returns, in the backend's form."""
    if _is_jax(spec):
        from keras import ops

        first = make()
        if make() is first:
            return itertools.repeat({n: ops.convert_to_tensor(x) for n, x in first.items()})
        return ({n: ops.convert_to_tensor(x) for n, x in make().items()} for _ in itertools.count())
    import tensorflow as tf

    signature = {name: tf.TensorSpec(x.shape, x.dtype) for name, x in make().items()}
    endless = (lambda: (make() for _ in itertools.count()))
    return iter(tf.data.Dataset.from_generator(endless, output_signature=signature).prefetch(4))


def _timed_apart(train, iterator, count):
    """Returns a turn of `count` steps that reports the time of the second half, and its waiting time.

    The first half uses up the batches that were prefetched while other sides computed.
    """
    def turn():
        waiting, started = 0.0, 0.0
        for i in range(count):
            if i == count // 2:
                waiting, started = 0.0, time.perf_counter()
            asked = time.perf_counter()
            batch = next(iterator)
            waiting += time.perf_counter() - asked
            train.strategy.run(train._step, args=(batch, np.float32(0))).numpy()
        return serve.Parts(steps=time.perf_counter() - started, waiting=waiting)

    return turn


def _read_batches(spec, length, predictions):
    """Returns the batches of a record file, read as run_pretraining reads it."""
    from albert.pretraining_data import dynamic_masking, masking
    from albert.records.record_files import RecordFiles
    from albert.tasks.pretraining import PretrainingTask
    from albert.training.current_engine import current

    source, masks = RecordFiles([spec["records"]]), None
    if dynamic_masking.files_without_masks(source):
        settings = masking.MaskingSettings(predictions)
        masks = dynamic_masking.dynamic_masking(source, length, settings, 1)
    features = PretrainingTask(length, predictions, masks=masks).feature_spec()
    return current().train_batches(
        source, features, batch_size=spec["batch_size"], vocab_size=spec["vocab_size"], seed=1
    )


def _classification(spec, rows):
    """Returns a task and its records, as the commands would make them."""
    from albert.records import manifests
    from albert.records.record_files import RecordFiles
    from albert.tasks.classification import ClassificationTask

    length, labels = rows["input_ids"].shape[1], int(rows["label_ids"].max()) + 1
    task = ClassificationTask("benchmark", length, tuple(map(str, range(labels))), 0.0)
    path = spec["outputs"] + ".tfrecord"
    examples = (
        {name: value[i] for name, value in rows.items()} | {"is_real_example": 1}
        for i in range(len(rows["label_ids"]))
    )
    manifests.write_records(path, examples, task.feature_spec(), {})
    return task, RecordFiles([path])


def _finetune(spec, rows):
    from albert.training import steps
    from albert.training.current_engine import current
    from albert.training.run import row_options

    task, source = _classification(spec, rows)
    _, go, run = _train_steps(spec, task)
    size, count = spec["batch_size"], len(rows["label_ids"])
    features = task.feature_spec()
    batches = iter(current().train_batches(
        source, features, batch_size=size, vocab_size=spec["vocab_size"],
        seed=1, **row_options(run, features, source, size),
    ))

    def turn():
        return go(batches, count // size)[:, steps.LOSS]

    return turn, {"loss": turn().mean()}


def _predict(spec, rows):
    if spec.get("is_onnx"):
        return _predict_by_file(spec, rows)
    if spec.get("is_litert"):
        return _predict_by_litert(spec, rows)
    from albert.formats import pretrained
    from albert.training import evaluate, steps
    from albert.training.current_engine import current
    from albert.training.run import row_options

    task, source = _classification(spec, rows)
    opened, run, features = pretrained.open_path(spec["model"]), _run_config(spec), task.feature_spec()
    model, _ = evaluate.load_model(task, opened.config, run, opened.weights())
    step = steps.EvalStep(task, model)
    batches = current().eval_batches(
        source, features, batch_size=spec["batch_size"], vocab_size=spec["vocab_size"],
        **row_options(run, features, source, spec["batch_size"]),
    )

    def turn():
        logits = np.concatenate([step(batch)[2]["logits"] for batch in batches])
        return logits[: len(rows["label_ids"])]

    return turn, {"logits": turn()}


def _predict_by_file(spec, rows):
    """Predicts as a session does: sorted by length, each batch as long as its longest text."""
    from albert.inference import session

    compute = session.batched(
        _onnx_file(spec, "sequence_classification"), spec["batch_size"],
        range(1, rows["input_ids"].shape[1] + 1),
    )
    lengths = rows["input_mask"].sum(axis=1)
    texts = [
        {name: value[i, :length] for name, value in _model_inputs(rows).items()}
        for i, length in enumerate(lengths)
    ]

    def turn():
        found = dict(compute(texts))
        return np.stack([found[i]["logits"] for i in range(len(texts))])

    return turn, {"logits": turn()}


def _predict_by_litert(spec, rows):
    """Predicts one text at a time, at a fixed length: a file takes no other."""
    import albert
    from albert.export import model_conversion

    run = model_conversion.run_tflite(
        model_conversion.to_tflite(
            albert.AlbertForSequenceClassification.from_pretrained(spec["model"]), ["logits"],
            rows["input_ids"].shape[1], spec.get("is_int8", False),
        ),
        spec["threads"],
    )
    texts = _model_inputs(rows)

    def turn():
        return np.concatenate([
            run({name: value[i : i + 1] for name, value in texts.items()})["logits"]
            for i in range(len(rows["input_ids"]))
        ])

    return turn, {"logits": turn()}


def _gpu_peak_bytes() -> int:
    import keras

    if keras.backend.backend() == "tensorflow":
        return serve.tensorflow_gpu_peak_bytes()
    import jax

    return jax.local_devices()[0].memory_stats()["peak_bytes_in_use"]


serve.serve(prepare, _gpu_peak_bytes)

"""keras-hub's side of the model benchmarks, on TensorFlow. Imports nothing from the project.

It compiles, trains and predicts with plain Keras, as its users do.
"""

import glob
import json
import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import numpy as np  # noqa: E402
import serve  # noqa: E402


def prepare(spec):
    import keras
    import tensorflow as tf

    if spec.get("device") != "gpu":
        tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(spec["threads"])
    policy = spec.get("precision", "float32")
    keras.config.set_dtype_policy(policy if policy == "float32" else f"mixed_{policy}")
    with open(os.path.join(spec["model"], "albert_config.json")) as stream:
        config = json.load(stream)
    rows = serve.load_rows(spec)
    inputs = {"token_ids": rows["input_ids"], "segment_ids": rows["segment_ids"],
              "padding_mask": rows["input_mask"]}
    work = {"inference": _inference, "pretrain": _pretrain, "predict": _predict}[spec["work"]]
    return work(spec, config, rows, inputs)


def _tensors(spec):
    """Returns a function that maps a name to the checkpoint's tensor."""
    import tensorflow as tf

    [index] = glob.glob(os.path.join(spec["model"], "*.index"))
    return tf.train.load_checkpoint(index.removesuffix(".index")).get_tensor


def _assign(spec, pairs):
    read = _tensors(spec)
    for name, variable in pairs:
        variable.assign(np.reshape(read(name), variable.shape))


def _inference(spec, config, rows, inputs):
    import keras_hub_weights as weights

    backbone = weights.make_backbone(config)
    _assign(spec, weights.of_backbone(config, backbone))
    backbone.compile(jit_compile=spec.get("use_xla", False))

    def turn():
        return backbone.predict_on_batch(inputs)

    outputs = turn()
    sequence = np.asarray(outputs["sequence_output"], np.float32)
    return turn, {
        "sequence_output": sequence * rows["input_mask"][..., None],
        "pooled_output": outputs["pooled_output"],
    }


def _pretrain(spec, config, rows, inputs):
    import keras
    import keras_hub_weights as weights
    from keras_hub.models import AlbertMaskedLM

    backbone = weights.make_backbone(config)
    masked = AlbertMaskedLM(backbone)
    order = keras.layers.Dense(2, name="order")
    pooled = backbone(backbone.input)["pooled_output"]
    model = keras.Model(
        masked.input, {"masked": masked.output, "order": order(pooled)}
    )
    head = masked.masked_lm_head
    _assign(spec, [
        *weights.of_backbone(config, backbone),
        *weights.of_layer("cls/predictions/transform/dense", head._intermediate_dense),
        *weights.of_layer("cls/predictions/transform/LayerNorm", head._intermediate_layer_norm),
        ("cls/predictions/output_bias", head._bias),
        ("cls/seq_relationship/output_bias", order.bias),
    ])
    order.kernel.assign(_tensors(spec)("cls/seq_relationship/output_weights").T)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-6, global_clipnorm=1.0),
        loss={"masked": loss, "order": loss}, jit_compile=spec.get("use_xla", False),
    )
    batch = inputs | {"mask_positions": rows["masked_lm_positions"]}
    labels = {"masked": rows["masked_lm_ids"], "order": rows["next_sentence_labels"][:, 0]}
    weight = {"masked": rows["masked_lm_weights"], "order": np.ones(len(rows["input_ids"]))}

    def turn():
        return model.train_on_batch(batch, labels, sample_weight=weight, return_dict=True)

    first = turn()
    # Keras divides by the number of prediction slots, masked or not.
    places = rows["masked_lm_weights"]
    value = first["masked_loss"] * places.size / places.sum() + first["order_loss"]
    return turn, {"loss": value}


def _predict(spec, config, rows, inputs):
    import keras
    import keras_hub_weights as weights

    backbone = weights.make_backbone(config)
    classes = keras.layers.Dense(int(rows["label_ids"].max()) + 1, dtype="float32")
    model = keras.Model(backbone.input, classes(backbone(backbone.input)["pooled_output"]))
    _assign(spec, [*weights.of_backbone(config, backbone), ("output_bias", classes.bias)])
    classes.kernel.assign(_tensors(spec)("output_weights").T)
    model.compile(jit_compile=spec.get("use_xla", False))

    def turn():
        return model.predict(inputs, batch_size=spec["batch_size"], verbose=0)

    return turn, {"logits": turn()}


serve.serve(prepare, serve.tensorflow_gpu_peak_bytes)

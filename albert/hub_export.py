"""The SavedModel behind `export_to_tfhub`: what a module computes and under which names.

Legend: B batch, L sequence, P predictions, V vocabulary. All inputs are int32.
"""

from collections.abc import Sequence

import tensorflow as tf

from albert import checkpoints
from albert.config import AlbertConfig
from albert.modeling import AlbertForPreTraining, named_weights

_AutoTrackable = tf.__internal__.tracking.AutoTrackable


def _tokens(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None, None], tf.int32, name=name)


# Ours follow TF-Hub's common API for text encoders; the signatures' are the original's.
_HUB_INPUTS = {n: _tokens(n) for n in ("input_word_ids", "input_mask", "input_type_ids")}
_INPUTS = {n: _tokens(n) for n in ("input_ids", "input_mask", "segment_ids")}


def export_module(
    config: AlbertConfig,
    weights: checkpoints.Weights,
    assets: Sequence[str],
    path: str,
    *,
    do_lower_case: bool,
) -> None:
    """Writes the module; `assets` are files copied into it, the vocabulary last.

    Raises:
      CheckpointError: the checkpoint lacks a weight of encoder or pretraining heads.
    """
    model = AlbertForPreTraining(config)
    named = named_weights(model)
    shapes = {name: tuple(v.shape) for name, v in named.items()}
    tensors, account = checkpoints.warm_start(shapes, weights)
    if account["new"]:
        raise checkpoints.CheckpointError(
            f"{weights.origin} lacks {', '.join(account['new'][:6])}: a module holds the "
            "pretraining heads too"
        )
    for name, value in tensors.items():
        named[name].assign(value)

    root = _AutoTrackable()
    root.weights = {name: v.value for name, v in named.items()}
    root.variables = list(root.weights.values())
    root.trainable_variables = list(root.weights.values())
    root.regularization_losses = []
    root.assets = [tf.saved_model.Asset(asset) for asset in assets]
    root.__call__ = _callable(model)
    for training in (False, True):
        root.__call__.get_concrete_function(_HUB_INPUTS, training=training)
    signatures = _signatures(model, root.assets[-1], do_lower_case)
    tf.saved_model.save(root, path, signatures=signatures)


def _callable(model: AlbertForPreTraining):
    @tf.function
    def call(inputs, training=False):
        features = {
            "input_ids": inputs["input_word_ids"],
            "input_mask": inputs["input_mask"],
            "segment_ids": inputs["input_type_ids"],
        }
        # Drawn anew by each call: a module has no step to derive its dropout from.
        seed = tf.random.uniform([2], maxval=tf.int64.max, dtype=tf.int64) if training else None
        outputs = model.bert(features, training=training, dropout_seed=seed)
        return {
            "pooled_output": outputs["pooled_output"],
            "sequence_output": outputs["sequence_output"],
            "encoder_outputs": outputs["encoder_outputs"],
            "default": outputs["pooled_output"],
        }

    return call


def _signatures(model: AlbertForPreTraining, vocabulary: tf.saved_model.Asset, lower: bool):
    bert = model.bert

    def base(inputs):
        outputs = bert(inputs, training=False)
        return {key: outputs[key] for key in ("sequence_output", "pooled_output")}

    @tf.function(input_signature=[*_INPUTS.values()])
    def tokens(input_ids, input_mask, segment_ids):
        return base(_named(input_ids, input_mask, segment_ids))

    @tf.function(input_signature=[*_INPUTS.values()])
    def sop(input_ids, input_mask, segment_ids):
        outputs = base(_named(input_ids, input_mask, segment_ids))
        logits = model.seq_relationship(outputs["pooled_output"])
        return outputs | {"sop_log_probs": tf.nn.log_softmax(logits)}

    @tf.function(input_signature=[*_INPUTS.values(), _tokens("mlm_positions")])
    def mlm(input_ids, input_mask, segment_ids, mlm_positions):
        inputs = _named(input_ids, input_mask, segment_ids)
        outputs = model(inputs | {"masked_lm_positions": mlm_positions}, training=False)
        logits = outputs["masked_lm_logits"]  # [B, P, V], flat in the original
        return {key: outputs[key] for key in ("sequence_output", "pooled_output")} | {
            "mlm_logits": tf.reshape(logits, [-1, tf.shape(logits)[-1]])
        }

    @tf.function(input_signature=[])
    def tokenization_info():
        return {"vocab_file": vocabulary.asset_path, "do_lower_case": tf.constant(lower)}

    return {
        "serving_default": tokens,
        "tokens": tokens,
        "sop": sop,
        "mlm": mlm,
        "tokenization_info": tokenization_info,
    }


def _named(input_ids, input_mask, segment_ids):
    return {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}

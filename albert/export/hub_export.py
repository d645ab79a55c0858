"""The SavedModel of `export_to_tfhub`: a text encoder with TF-Hub's common API.

Legend: B batch, L sequence, H hidden, P predictions, V vocabulary. All ids are int32.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from albert.errors import CheckpointError, UserError, first_line, some
from albert.formats import pretrained
from albert.formats.pretrained import Pretrained
from albert.model import row_layout
from albert.modeling import AlbertForPreTraining, named_weights

MAIN_FILE = "saved_model.pb"  # without it, a directory isn't a SavedModel
_AutoTrackable = tf.__internal__.tracking.AutoTrackable


def _tokens(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None, None], tf.int32, name=name)


# The names of TF-Hub's common API for text encoders, and of the original's signatures.
_HUB_INPUTS = {n: _tokens(n) for n in ("input_word_ids", "input_mask", "input_type_ids")}
_INPUTS = {n: _tokens(n) for n in ("input_ids", "input_mask", "segment_ids")}
_HEADS = {"mlm": "cls/predictions/", "sop": "cls/seq_relationship/"}


def load_model(source: Pretrained) -> tuple[AlbertForPreTraining, dict[str, Any]]:
    """Returns a model and its weights by name: the encoder's, and those of the heads that were trained.

    Raises:
      CheckpointError: the encoder lacks weights.
    """
    model = AlbertForPreTraining(source.config)
    new = pretrained.assign(model, source.weights())["new"]
    if lacking := [name for name in new if name.startswith("bert/")]:
        raise CheckpointError(f"{source.weights().origin} lacks {some(lacking)}, which a module has")
    absent = tuple(scope for scope in _HEADS.values() if any(name.startswith(scope) for name in new))
    return model, {n: v for n, v in named_weights(model).items() if not n.startswith(absent)}


def export_module(
    model: AlbertForPreTraining, named: Mapping[str, Any], assets: Sequence[str], path: str, *,
    do_lower_case: bool,
) -> None:
    """Writes the encoder, and its heads as further parts.

    Args:
      named: the weights to include, see `load_model`.
      assets: files to include, the vocabulary last.
    """
    encoder = {n: v for n, v in named.items() if n.startswith("bert/")}
    encode, *heads = computations = functions(model)  # shared by all parts, so that each is traced once
    root = _AutoTrackable()
    # First, so that these are the names in the checkpoint, which `formats.hub` reads.
    root.weights = {name: v.value for name, v in named.items()}
    _fill_part(root, encoder, encode, _HUB_INPUTS)
    # What Keras 3's TFSMLayer calls.
    root.serve = tf.function(lambda inputs: encode(inputs, training=False), input_signature=[_HUB_INPUTS])
    root.assets = [tf.saved_model.Asset(asset) for asset in assets]
    # Other trainable parts: the encoder with one head each.
    positions = {"masked_lm_positions": _tokens("masked_lm_positions")}
    called = signatures(computations, root.assets[-1], do_lower_case)
    for (name, scope), call, more in zip(_HEADS.items(), heads, (positions, {}), strict=True):
        weights = {n: v for n, v in named.items() if n.startswith(scope)}
        if not weights:
            del called[name]
            continue
        setattr(root, name, part := _AutoTrackable())
        _fill_part(part, encoder | weights, call, _HUB_INPUTS | more)
    with writing():
        tf.saved_model.save(root, path, signatures=called)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Raises a UserError if the SavedModel in the block cannot be written (disk full, say)."""
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        raise UserError(f"cannot write a SavedModel: {first_line(error)}") from error


def _fill_part(
    part: _AutoTrackable, weights: Mapping, call: tf.types.experimental.PolymorphicFunction, inputs
) -> None:
    """Makes an object one that TF-Hub's loaders can call and train."""
    part.variables = [v.value for v in weights.values()]
    part.trainable_variables = [v.value for v in weights.values()]
    part.regularization_losses = []
    part.__call__ = call
    for training in (False, True):
        call.get_concrete_function(inputs, training=training)


def functions(model: AlbertForPreTraining) -> tuple[Callable, Callable, Callable]:
    """Returns the computations of the encoder, and of the encoder with each of `_HEADS`."""
    limit = model.config.max_position_embeddings

    @tf.function
    def encode(inputs, training=False):
        # A module doesn't know the step that would determine dropout, so each call draws a seed.
        seed = tf.random.uniform([2], maxval=tf.int64.max, dtype=tf.int64) if training else None
        ids = inputs["input_word_ids"]
        check = tf.debugging.assert_less_equal(
            tf.shape(ids)[1], limit,
            f"the sequence is longer than the model's position table: at most {limit} ids",
        )
        with tf.control_dependencies([check]):
            # Hides a static shape: shape inference would fail first, with an obscure message.
            ids = tf.raw_ops.PlaceholderWithDefault(input=ids, shape=[None, None])
        features = {
            "input_ids": ids, "input_mask": inputs["input_mask"], "segment_ids": inputs["input_type_ids"],
        }
        outputs = model.bert(features, training=training, dropout_seed=seed, output_hidden_states=True)
        names = ("pooled_output", "sequence_output", "encoder_outputs")
        return {name: outputs[name] for name in names} | {"default": outputs["pooled_output"]}

    @tf.function
    def mlm(inputs, training=False):
        outputs = encode({name: inputs[name] for name in _HUB_INPUTS}, training=training)
        hidden = row_layout.gather_positions(outputs["sequence_output"], inputs["masked_lm_positions"])
        logits = model.predictions(hidden, model.bert.embeddings.word_embeddings)  # [B, P, V]
        return outputs | {"mlm_logits": logits}

    @tf.function
    def sop(inputs, training=False):
        outputs = encode(inputs, training=training)
        return outputs | {"sop_logits": model.seq_relationship(outputs["pooled_output"])}  # [B, 2]

    return encode, mlm, sop


def signatures(
    computations: Sequence[Callable], vocabulary: tf.saved_model.Asset, lower: bool
) -> dict[str, Callable]:
    """Returns the module's signatures, under the original's names, given its `functions`."""
    encode, mlm_part, sop_part = computations

    def run(part, *inputs, **more):
        outputs = part(dict(zip(_HUB_INPUTS, inputs, strict=True)) | more)
        return outputs, {key: outputs[key] for key in ("sequence_output", "pooled_output")}

    @tf.function(input_signature=[*_INPUTS.values()])
    def tokens(input_ids, input_mask, segment_ids):
        return run(encode, input_ids, input_mask, segment_ids)[1]

    @tf.function(input_signature=[*_INPUTS.values()])
    def sop(input_ids, input_mask, segment_ids):
        outputs, shared = run(sop_part, input_ids, input_mask, segment_ids)
        return shared | {"sop_log_probs": tf.nn.log_softmax(outputs["sop_logits"])}

    @tf.function(input_signature=[*_INPUTS.values(), _tokens("mlm_positions")])
    def mlm(input_ids, input_mask, segment_ids, mlm_positions):
        outputs, shared = run(mlm_part, input_ids, input_mask, segment_ids, masked_lm_positions=mlm_positions)
        logits = outputs["mlm_logits"]  # flat in the original
        return shared | {"mlm_logits": tf.reshape(logits, [-1, tf.shape(logits)[-1]])}

    @tf.function(input_signature=[])
    def tokenization_info():
        return {"vocab_file": vocabulary.asset_path, "do_lower_case": tf.constant(lower)}

    return {
        "serving_default": tokens, "tokens": tokens, "sop": sop, "mlm": mlm,
        "tokenization_info": tokenization_info,
    }

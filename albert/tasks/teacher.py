"""A teacher: an encoder whose hidden states a student learns to compute.

The student reads masked records, the teacher the same ones without masks. The losses are
state-by-state (as in TinyBERT, arXiv 1909.10351) and of the sentence embedding.

Legend: B batch, L sequence, P predictions, H hidden (of the teacher), E embedding, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from albert.config import LAYER_NORM_EPSILON, AlbertConfig
from albert.errors import FlagError, some
from albert.formats import pretrained
from albert.formats.metadata import Metadata
from albert.formats.pretrained import Pretrained
from albert.formats.weights import Weights
from albert.model.layers import dense_layer
from albert.model.row_layout import layout_of
from albert.modeling import AlbertForPreTraining, AlbertModel
from albert.pretraining_data import cooccurrence
from albert.records.record_files import RecordFiles
from albert.tokenization import FullTokenizer

_EMBEDDINGS, _MAPPING = "bert/embeddings/", "bert/encoder/embedding_hidden_mapping_in/"
_NORM = f"{_EMBEDDINGS}LayerNorm/"
_TABLES = [f"{_EMBEDDINGS}{name}_embeddings" for name in ("word", "position", "token_type")]
_COUNTED = 5_000_000  # tokens from which frequencies are estimated
_FITTED = 50_000  # embeddings of tokens to which the projection is fitted
_POSITIONS = 64  # among which they are


class Student(AlbertForPreTraining):
    """Its outputs include `states` [B, L, H], in the teacher's width.

    If the student's width differs, a projection that only training needs adapts it.
    """

    def __init__(self, config: AlbertConfig, teacher_width: int, **options: Any):
        self.teacher_width = teacher_width
        super().__init__(config, **options)
        self.metadata = Metadata(architecture=AlbertForPreTraining.__name__)

    def _make_head(self) -> None:
        super()._make_head()
        self.teacher_projection = None
        if self.teacher_width != self.config.hidden_size:
            self.teacher_projection = dense_layer(self.teacher_width, self.config, "teacher_projection")
            self.teacher_projection.build((None, None, self.config.hidden_size))

    def _outputs(self, encoded, inputs, dropout):
        states = encoded.sequence
        if self.teacher_projection:
            states = self.teacher_projection(states)
        return super()._outputs(encoded, inputs, dropout) | {"states": states}


class Teacher:
    """An opened encoder for a student with the vocabulary of `tokenizer`.

    Raises:
      FlagError: the vocabulary has entries that the teacher lacks.
    """

    def __init__(self, source: Pretrained, tokenizer: FullTokenizer, precision: str):
        self.source, self.width = source, source.config.hidden_size
        self.pooling = (source.metadata.pooling or "mean").split("+")[0]
        if self.pooling not in ("mean", "cls"):
            raise FlagError(f"--teacher={source.path} makes embeddings by {self.pooling!r}, which is "
                            "not supported")
        known = source.required_tokenizer().vocab
        if unknown := [token for token in tokenizer.vocab if token not in known]:
            raise FlagError(f"--teacher={source.path} lacks {some(unknown)}: make the records with "
                            "its vocabulary")
        self.rows = np.array([known[token] for token in tokenizer.vocab], np.int32)  # [V]
        self.model = pretrained.load(AlbertModel, source, dtype=precision)
        self.model.trainable = False

    def compare(self, batch: Mapping[str, Any], states: Any) -> dict[str, Any]:
        """Compares the student's `states` [B, L, H] with those of the teacher.

        Returns:
          `state_errors` [B, L], squared errors in units of the variance of the teacher's state; and
          `similarity` [B], the cosine of the sentence embeddings.
        """
        layout = layout_of(batch)
        ids = ops.take(ops.convert_to_tensor(self.rows), _unmasked(batch, layout))
        outputs = self.model.of_batch({**batch, "input_ids": ids})
        target = ops.cast(ops.stop_gradient(outputs["sequence_output"]), "float32")
        states = ops.cast(states, "float32")
        errors = ops.mean(ops.square(states - target), axis=-1) / ops.var(target, axis=-1)
        mask = ops.cast(layout.mask, "float32")[..., None]
        is_mean = self.pooling == "mean"
        ours, theirs = (ops.sum(x * mask, axis=1) if is_mean else x[:, 0] for x in (states, target))  # [B, H]
        squares = ops.sum(ops.square(ours), axis=-1) * ops.sum(ops.square(theirs), axis=-1)
        # The cosine; 0 for padding of the batch.
        cosine = ops.sum(ours * theirs, axis=-1) * ops.rsqrt(squares + LAYER_NORM_EPSILON)
        return {"state_errors": errors, "similarity": cosine}


def _unmasked(batch: Mapping[str, Any], layout: Any):
    """Returns the ids of a batch before masking."""
    ids = ops.convert_to_tensor(batch["input_ids"])
    flat = ops.reshape(ids, (-1,))
    at = ops.reshape(layout.flat(batch["masked_lm_positions"]), (-1,))
    labels = ops.cast(ops.reshape(batch["masked_lm_ids"], (-1,)), ids.dtype)
    # Records of other tools may have predictions outside of the text.
    is_token = ops.take_along_axis(layout.mask, batch["masked_lm_positions"], axis=1)
    is_masked = ops.reshape(batch["masked_lm_weights"] * ops.cast(is_token, "float32"), (-1,)) > 0
    labels = ops.where(is_masked, labels, ops.take(flat, at))
    return ops.reshape(ops.scatter_update(flat, at[:, None], labels), ops.shape(ids))


# === A student's initial weights ===


def initial_weights(teacher: Teacher, config: AlbertConfig, source: RecordFiles) -> Weights:
    """Returns the weights of a student that begins as its teacher.

    Narrower tables are the teacher's in the E directions in which the embeddings of the records'
    tokens vary most (principal components); the projection is fitted to the teacher's by least
    squares. A group of layers has the mean weights of as large a part of the teacher's layers.

    Raises:
      FlagError: the layers have other sizes, or the tables are wider.
    """
    theirs, tensors = teacher.source.config, teacher.source.weights()
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "inner_group_num")
    differ = [name for name in sizes if getattr(theirs, name) != getattr(config, name)]
    differ += ["embedding_size"] * (config.embedding_size > theirs.embedding_size)
    if differ:
        raise FlagError(f"--init_from_teacher: {some(differ)} must be the teacher's "
                        f"({', '.join(str(getattr(theirs, name)) for name in differ)}): leave the "
                        "flag out, or change --albert_config_file")
    values = {name: tensors.read(name) for name in tensors.shapes if name.startswith("bert/")}
    for name, limit in (("word", teacher.rows), ("position", np.s_[: config.max_position_embeddings])):
        values[f"{_EMBEDDINGS}{name}_embeddings"] = values[f"{_EMBEDDINGS}{name}_embeddings"][limit]
    frequency = _frequencies(source, config.vocab_size)
    if config.embedding_size < theirs.embedding_size:
        _narrow(values, config.embedding_size, frequency)
    values["cls/predictions/output_bias"] = np.log(frequency)
    # --- Groups: the mean of the layers that one replaces ---
    layers = range(theirs.num_hidden_layers)
    for name in [name for name in values if "/group_0/" in name]:
        of_layer = [values[name.replace("/group_0/", f"/group_{theirs.group_of_layer(i)}/")]
                    for i in layers]
        parts = np.array([i * config.num_hidden_groups // len(layers) for i in layers])
        for group in range(config.num_hidden_groups):
            nearest = parts == parts[np.argmin(abs(parts - group))]
            part = [value for value, is_part in zip(of_layer, nearest, strict=True) if is_part]
            values[name.replace("/group_0/", f"/group_{group}/")] = np.mean(part, axis=0)
    return Weights.of(
        teacher.source.path, {name: value.astype(np.float32) for name, value in values.items()}
    )


def _narrow(values: dict[str, np.ndarray], width: int, frequency: np.ndarray) -> None:
    """Replaces the weights of the embeddings by narrower ones."""
    tables = [values[name].astype(np.float64) for name in _TABLES]
    # LayerNorm removes the mean of a sum, so of each table.
    words, positions, segments = (table - table.mean(axis=1, keepdims=True) for table in tables)
    rng, limit = np.random.default_rng(0), min(_POSITIONS, len(positions))
    drawn = rng.choice(len(words), _FITTED, p=frequency), rng.integers(0, limit, _FITTED)
    wide = _normalized(words[drawn[0]] + positions[drawn[1]] + segments[0])
    _, directions = np.linalg.eigh(wide.T @ wide)  # in ascending order
    directions = directions[:, -width:]  # [wide, narrow]
    for name, table in zip(_TABLES, (words, positions, segments), strict=True):
        values[name] = table @ directions
    target = wide * values[_NORM + "gamma"] + values[_NORM + "beta"]
    if _MAPPING + "kernel" in values:
        target = target @ values[_MAPPING + "kernel"] + values[_MAPPING + "bias"]
    inputs = _normalized((words[drawn[0]] + positions[drawn[1]] + segments[0]) @ directions)
    fitted = np.linalg.lstsq(np.pad(inputs, [(0, 0), (0, 1)], constant_values=1.0), target)[0]
    values |= {
        _NORM + "gamma": np.ones(width), _NORM + "beta": np.zeros(width),
        _MAPPING + "kernel": fitted[:-1], _MAPPING + "bias": fitted[-1],
    }


def _normalized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + LAYER_NORM_EPSILON)


def _frequencies(source: RecordFiles, vocab_size: int) -> np.ndarray:
    """Returns the fraction [V] of each token in the first records; no one is 0."""
    counts, spec = np.ones(vocab_size), cooccurrence.feature_spec(source)
    for ids in cooccurrence.sequences(source, spec, vocab_size):
        counts += np.bincount(ids.ravel(), minlength=vocab_size)
        if counts.sum() > _COUNTED:
            break
    counts[0] = 1  # padding
    return counts / counts.sum()

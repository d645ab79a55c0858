"""Writes a model as an ONNX graph, from its weights alone: no TensorFlow, no JAX.

The formulas are those of `albert.model`, in ONNX's standard operations.

Legend: B batch, C choices, L sequence, Q queries, H hidden, N heads, D = H / N, K and K2 candidates
for the first and the last token of an answer.
"""

import functools
import itertools
import json
import math
from collections.abc import Sequence

import numpy as np

from albert.config import LAYER_NORM_EPSILON, MASK_ADDER, NO_OPTION
from albert.errors import CheckpointError
from albert.formats.model_classes import CHOICE, TOKENS, ModelClass
from albert.formats.pretrained import Pretrained
from albert.formats.weights import UNITS
from albert.inference.onnx_graph import TYPES, Graph

INPUTS = ("input_ids", "input_mask", "segment_ids")
POSITIONS = "masked_lm_positions"
_MAX_BYTES = (1 << 31) - (1 << 20)  # the limit of the format, without room for what isn't weights
_OF_TOKENS = ("sequence_output", "prediction_logits")
_ACTIVATIONS = {
    "gelu": ("Gelu", {"approximate": "tanh"}), "gelu_erf": ("Gelu", {}), "relu": ("Relu", {}),
    "tanh": ("Tanh", {}), "linear": ("Identity", {}),
}


def model_file(
    kind: ModelClass, source: Pretrained, label_names: Sequence[str] | None = None,
    is_int8: bool = False, has_positions: bool = False,
) -> bytes:
    """Returns an ONNX file whose inputs are int32 [B, L], for multiple choice [B, C, L].

    Args:
      label_names: for the file's metadata, as a list in JSON.
      is_int8: whether large matrices are int8, with a scale for each column, and the values
        multiplied by them are quantized, too.
      has_positions: whether a masked LM gives only the logits at an input `masked_lm_positions` [B, Q].

    Raises:
      CheckpointError: a weight is missing, or the file would exceed 2 GiB, the limit of its format.
    """
    model = _Model(source, is_int8)
    sizes = ("batch", "choices", "length") if kind.task == CHOICE else ("batch", "length")
    inputs = dict.fromkeys(INPUTS, sizes)
    if has_positions:
        inputs[POSITIONS] = "batch", "positions"
    outputs = getattr(model, f"{kind.head}_outputs")(*[POSITIONS] * has_positions)
    shapes = {}
    for name, value in outputs.items():
        model.op("Identity", value, outputs=[name])
        rank = 1 if name == "cls_logits" else 3 if name in _OF_TOKENS or kind.task == TOKENS else 2
        shapes[name] = ["batch", *(f"{name}_{i}" for i in range(1, rank))]
    if model.num_bytes > _MAX_BYTES:
        remedy = "" if is_int8 else " choose int8, which needs a quarter, or"
        raise CheckpointError(
            f"{source.path}: weights of {model.num_bytes / 2**30:.1f} GiB, and ONNX files, with which "
            f"sessions compute, hold 2:{remedy} compute with the Keras model, "
            "albert.from_pretrained(...).predict(...)"
        )
    names = json.dumps(list(label_names or ()), ensure_ascii=False)
    return model.serialized(inputs, shapes, {"albert_label_names": names} if label_names else {})


class _Model(Graph):
    """The parts of a model as operations of its graph."""

    def __init__(self, source: Pretrained, is_int8: bool):
        super().__init__()
        self.config, self.settings = source.config, source.metadata.settings
        self.weights, self.is_int8 = source.weights(), is_int8

    def read(self, name: str) -> np.ndarray:
        """Returns a weight."""
        if name not in self.weights.shapes:
            raise CheckpointError(
                f"{self.weights.origin} has no trained {name}: it was trained for something else"
            )
        return self.weights.read(name).astype(np.float32, copy=False)

    def weight(self, name: str) -> str:
        """Returns the constant of a weight."""
        return self.constant(name, lambda: self.read(name))

    def in_int8(self, name: str, axis: int) -> tuple[str, str]:
        """Returns the constants of a matrix in int8, and of a scale for all values along an axis."""
        def scales() -> np.ndarray:
            return np.maximum(np.abs(self.read(name)).max(axis, keepdims=True) / 127, 1e-30)

        whole = self.constant(
            f"{name}, int8", lambda: np.rint(self.read(name) / scales()).astype(np.int8)
        )
        return whole, self.constant(f"{name}, scales", scales)

    def product(self, x: str, name: str, by_token: bool = False) -> str:
        """Returns x [..., A] times the matrix of that name [A, B].

        In int8, x has one scale or, slower and more exact, one for each token.
        """
        op = self.op
        if not self.is_int8:
            return op("MatMul", x, self.weight(name))
        kernel, scales = self.in_int8(name, 0)
        if by_token:
            width, out = self.weights.shapes[name]
            sizes = op("Concat", op("Shape", x, end=-1), [out], axis=0)
            x = op("Reshape", x, [-1, width])
            largest = op("ReduceMax", op("Abs", x), [1], keepdims=0)
            scale = op("Max", op("Mul", largest, 1 / 127), 1e-30)
            zero = self.constant("zero, uint8", lambda: np.uint8(128))
            values = op("QuantizeLinear", x, scale, op("Expand", zero, op("Shape", scale)), axis=0)
            scale = op("Unsqueeze", scale, [1])
        else:
            values, scale, zero = op("DynamicQuantizeLinear", x, outputs=3)  # onnxruntime shares equal ones
        whole = op("Cast", op("MatMulInteger", values, kernel, zero), to=TYPES["float32"])
        product = op("Mul", whole, op("Mul", scale, op("Squeeze", scales, [0])))
        return op("Reshape", product, sizes) if by_token else product

    def table(self, name: str) -> str:
        """Returns a table; onnxruntime turns one in int8 into float32 when it opens the file."""
        if not self.is_int8:
            return self.weight(name)
        table, scales = self.in_int8(name, 1)
        return self.op("Mul", self.op("Cast", table, to=TYPES["float32"]), scales)

    def dense(self, x: str, scope: str, by_token: bool = False) -> str:
        product = self.product(x, f"{scope}/kernel", by_token)
        return self.op("Add", product, self.weight(f"{scope}/bias"))

    def labelled(self, x: str, scope: str = "") -> str:
        """Returns logits [..., C] by a released head's `output_weights` [C, H]."""
        name = f"{scope}output_weights"
        kernel = self.constant(f"{name}, transposed", lambda: self.read(name).T)
        return self.op("Add", self.op("MatMul", x, kernel), self.weight(f"{scope}output_bias"))

    def normalized(self, x: str, scope: str) -> str:
        gamma, beta = self.weight(f"{scope}/gamma"), self.weight(f"{scope}/beta")
        return self.op("LayerNormalization", x, gamma, beta, epsilon=LAYER_NORM_EPSILON)

    def activated(self, x: str) -> str:
        name = self.config.hidden_act or "linear"
        kind, options = _ACTIVATIONS[name.lower()]
        return self.op(kind, x, **options)

    # === The encoder ===

    def sequences(self, name: str) -> str:
        """Returns an input as [B, L]."""
        length = self.op("Shape", name, start=-1)
        return self.op("Reshape", name, self.op("Concat", [-1], length, axis=0))

    def encoded(self, at: str | None = None) -> str:
        """Returns the last hidden states [B, Q, H]: all, the "first", or those at an input [B, Q]."""
        ids, mask, segments = map(self.sequences, INPUTS)
        words, kinds, places = (
            self.table(f"bert/embeddings/{name}_embeddings")
            for name in ("word", "token_type", "position")
        )
        x = self.op("Add", self.op("Gather", words, ids), self.op("Gather", kinds, segments))
        x = self.op("Add", x, self.op("Slice", places, [0], self.op("Shape", ids, start=1)))
        x = self.normalized(x, "bert/embeddings/LayerNorm")
        if self.config.has_embedding_projection:
            x = self.dense(x, "bert/encoder/embedding_hidden_mapping_in")
        is_absent = self.op("Sub", 1.0, self.op("Cast", mask, to=TYPES["float32"]))
        adder = self.op("Mul", self.op("Unsqueeze", is_absent, [1, 2]), MASK_ADDER)  # [B, 1, 1, L]
        *others, last = range(self.config.num_hidden_layers)
        groups = self.config.attention_group, self.config.feed_forward_group
        for _, equal in itertools.groupby(others, lambda layer: [group(layer) for group in groups]):
            layer, *more = equal
            # A loop, so that onnxruntime prepares the shared weights once when it opens the file.
            sizes = "batch", "length", self.config.hidden_size
            x = self.repeated(
                1 + len(more), x, sizes, lambda x, layer=layer: self.layer(x, adder, layer)
            )
        return self.layer(x, adder, last, at)

    def layer(self, x: str, adder: str, layer: int, at: str | None = None) -> str:
        """Returns the states [B, Q, H] after a layer, see `encoded`."""
        for j in range(self.config.inner_group_num):
            is_last = j == self.config.inner_group_num - 1
            queries = self.chosen(x, at) if at and is_last else x
            attention, feed_forward = (
                f"bert/encoder/transformer/group_{group(layer)}/inner_group_{j}"
                for group in (self.config.attention_group, self.config.feed_forward_group)
            )
            x = self.transformed(self.attended(queries, x, adder, attention), feed_forward)
        return x

    def chosen(self, x: str, at: str) -> str:
        """Returns the "first" of [B, L, ...], or those at an input [B, Q]."""
        if at == "first":
            return self.op("Slice", x, [0], [1], [1])
        indices = self.op("Cast", self.op("Unsqueeze", at, [2]), to=TYPES["int64"])
        return self.op("GatherND", x, indices, batch_dims=1)

    def attended(self, queries: str, x: str, adder: str, scope: str) -> str:
        """Returns LayerNorm(queries + attention(queries, x))."""
        def heads(value: str, name: str, order: tuple[int, ...]) -> str:
            value = self.dense(value, f"{scope}/attention_1/self/{name}")
            shape = [0, 0, self.config.num_attention_heads, self.config.head_size]
            return self.op("Transpose", self.op("Reshape", value, shape), perm=order)

        query, value = heads(queries, "query", (0, 2, 1, 3)), heads(x, "value", (0, 2, 1, 3))
        scores = self.op("MatMul", query, heads(x, "key", (0, 2, 3, 1)))  # [B, N, Q, L]
        scores = self.op("Mul", scores, 1.0 / math.sqrt(self.config.head_size))
        weights = self.op("Softmax", self.op("Add", scores, adder))
        context = self.op("Transpose", self.op("MatMul", weights, value), perm=(0, 2, 1, 3))
        context = self.op("Reshape", context, [0, 0, self.config.hidden_size])
        context = self.dense(context, f"{scope}/attention_1/output/dense")
        return self.normalized(self.op("Add", context, queries), f"{scope}/LayerNorm")

    def transformed(self, x: str, scope: str) -> str:
        """Returns LayerNorm(x + feed_forward(x))."""
        inner = self.activated(self.dense(x, f"{scope}/ffn_1/intermediate/dense"))
        # A few tokens have values so large that one scale would leave the others few bits: with one for
        # each token, 5 of 872 labels of SST-2 differ from float32's instead of 13 (small_en).
        outer = self.dense(inner, f"{scope}/ffn_1/intermediate/output/dense", by_token=True)
        return self.normalized(self.op("Add", outer, x), f"{scope}/LayerNorm_1")

    def pooled(self, states: str) -> str:
        """Returns the pooled output [B, H] of states [B, Q, H]."""
        return self.op("Tanh", self.dense(self.op("Gather", states, 0, axis=1), "bert/pooler/dense"))

    # === Heads ===

    def encoder_outputs(self) -> dict[str, str]:
        states = self.encoded()
        if "bert/pooler/dense/kernel" not in self.weights.shapes:
            return {"sequence_output": states}
        return {"pooled_output": self.pooled(states), "sequence_output": states}

    def masked_lm_outputs(self, positions: str | None = None) -> dict[str, str]:
        scope = "cls/predictions"
        x = self.activated(self.dense(self.encoded(positions), f"{scope}/transform/dense"))
        x = self.normalized(x, f"{scope}/transform/LayerNorm")
        table = self.op("Transpose", self.table("bert/embeddings/word_embeddings"), perm=(1, 0))
        logits = self.op("Add", self.op("MatMul", x, table), self.weight(f"{scope}/output_bias"))
        return {"prediction_logits": logits}

    def sequence_classification_outputs(self) -> dict[str, str]:
        logits = self.labelled(self.pooled(self.encoded("first")))
        mean, deviation = UNITS
        if mean in self.weights.shapes:
            logits = self.op("Add", self.op("Mul", logits, self.weight(deviation)), self.weight(mean))
        return {"logits": logits}

    def token_classification_outputs(self) -> dict[str, str]:
        return {"logits": self.labelled(self.encoded())}

    def multiple_choice_outputs(self) -> dict[str, str]:
        mask = self.op("ReduceMax", INPUTS[1], [-1], keepdims=0)  # [B, C]
        logits = self.labelled(self.pooled(self.encoded("first")))  # [B * C, 1]
        logits = self.op("Reshape", logits, self.op("Shape", mask))
        # Questions may have different numbers of options: one without tokens isn't an option.
        exists = self.op("Cast", mask, to=TYPES["bool"])
        return {"logits": self.op("Where", exists, logits, NO_OPTION)}

    def question_answering_outputs(self) -> dict[str, str]:
        logits = self.labelled(self.encoded(), "cls/squad/")  # [B, L, 2]
        names = enumerate(("start_logits", "end_logits"))
        return {name: self.op("Gather", logits, i, axis=-1) for i, name in names}

    def beam_question_answering_outputs(self) -> dict[str, str]:
        """Returns the beam of SQuAD 2.0, see `model.answers`."""
        op, sequence, possible = self.op, self.encoded(), self.possible()
        width, count = (self.settings.get(name, 5) for name in ("start_n_top", "end_n_top"))
        starts = op("Squeeze", self.dense(sequence, "start_logits/dense"), [-1])
        starts = op("Where", possible, starts, -1e30)  # [B, L]
        expected = op("MatMul", op("Unsqueeze", op("Softmax", starts), [1]), sequence)  # [B, 1, H]
        pair = op("Concat", expected, self.chosen(sequence, "first"), axis=-1)
        answer = op("Tanh", self.dense(pair, "answer_class/dense_0"))
        answer = op("MatMul", answer, self.weight("answer_class/dense_1/kernel"))  # [B, 1, 1]
        start_scores, start_places = self.best(op("LogSoftmax", starts), width)

        kernels = op("Split", self.weight("end_logits/dense_0/kernel"), axis=0, num_outputs=2, outputs=2)
        chosen = self.chosen(sequence, start_places)
        of_token, of_start = map(functools.partial(op, "MatMul"), (sequence, chosen), kernels)
        of_token, of_start = op("Unsqueeze", of_token, [1]), op("Unsqueeze", of_start, [2])
        x = op("Add", op("Add", of_token, of_start), self.weight("end_logits/dense_0/bias"))
        x = self.normalized(op("Tanh", x), "end_logits/LayerNorm")  # [B, K, L, H]
        ends = op("Squeeze", self.dense(x, "end_logits/dense_1"), [-1])
        ends = op("LogSoftmax", op("Where", op("Unsqueeze", possible, [1]), ends, -1e30))
        found = (op("Reshape", one, [-1, width * count]) for one in self.best(ends, count))
        names = "end_top_log_probs", "end_top_index"
        return {
            "cls_logits": op("Squeeze", answer, [1, 2]), "start_top_log_probs": start_scores,
            "start_top_index": start_places, **dict(zip(names, found, strict=True)),
        }

    def possible(self) -> str:
        """Returns whether an answer can be there [B, L], see `answers.p_mask`."""
        op = self.op
        second = op("Cast", op("Mul", INPUTS[1], INPUTS[2]), to=TYPES["float32"])
        following = op("Pad", op("Slice", second, [1], [1 << 31], [1]), [0, 1], 0.0, [1])
        # At [CLS], and at the tokens of the second segment before its [SEP].
        others = op("Slice", op("Mul", second, following), [1], [1 << 31], [1])
        return op("Cast", op("Pad", others, [1, 0], 1.0, [1]), to=TYPES["bool"])

    def best(self, scores: str, count: int) -> list[str]:
        """Returns the highest scores [..., count] and their positions, 0 if there are too few."""
        op, length = self.op, self.op("Shape", scores, start=-1)
        padded = op("Pad", scores, [0, count], -2e30, [-1])
        found, places = op("TopK", padded, [count], outputs=2)
        is_inside = op("Cast", op("Less", places, length), to=TYPES["int64"])
        return [found, op("Cast", op("Mul", places, is_inside), to=TYPES["int32"])]

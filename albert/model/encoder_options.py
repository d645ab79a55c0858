"""How an encoder computes, and how many of its layers."""

import dataclasses

import keras

from albert.model.attention import ATTENTION

ENGINES = ("unrolled", "graph_loop", "scan")  # the last two: TensorFlow's, JAX's


def loop_engine() -> str:
    """Returns the engine that applies equal layers in a loop, on this backend of Keras."""
    loops = {"tensorflow": "graph_loop", "jax": "scan"}
    return loops.get(keras.backend.backend(), "unrolled")


Depth = int | None  # layers to apply; None: all


@dataclasses.dataclass(frozen=True)
class EncoderOptions:
    """Options of a model's construction. They change results only by the order of sums.

    Raises:
      ValueError: a name that is not known.
    """

    attn_implementation: str = "eager"  # key of `attention.ATTENTION`
    engine: str = "unrolled"  # what applies the layers: one of ENGINES
    remat: bool = False  # recompute each block in the backward pass, to save memory
    needed_outputs_only: bool = False  # of the last block, only what the model's head reads
    # Masked-LM logits [K, V] of the K positions alone that `masked_lm_weights` counts, instead of
    # [B, P, V]. K changes from batch to batch: not for compilers that need to know each shape.
    weighted_positions_only: bool = False
    # Additional outputs of a call, by default.
    output_hidden_states: bool = False
    output_attentions: bool = False

    def __post_init__(self):
        for name, known in (("attn_implementation", tuple(ATTENTION)), ("engine", ENGINES)):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} {value!r} is not one of {', '.join(known)}")

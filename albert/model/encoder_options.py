"""Options for how an encoder computes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras

ENGINES = ("unrolled", "graph_loop", "scan")  # the loops are TensorFlow's and JAX's


def loop_engine() -> str:
    """Returns the engine for layers in a loop on this Keras backend."""
    loops = {"tensorflow": "graph_loop", "jax": "scan"}
    return loops.get(keras.backend.backend(), "unrolled")


@dataclasses.dataclass(frozen=True)
class EncoderOptions:
    """Options of a model, which affect its results only by the order of sums.

    Raises:
      ValueError: the engine is unknown.
    """

    engine: str = "unrolled"  # one of ENGINES, which applies the layers
    remat: bool = False  # recompute each block in the backward pass, to save memory
    # Compute the last block only at the positions that the head reads.
    needed_outputs_only: bool = False
    # Compute masked-LM logits [K, V] only of the K positions whose `masked_lm_weights` aren't 0,
    # instead of [B, P, V]. K depends on the batch, which compilers of static shapes don't support.
    weighted_positions_only: bool = False
    # Defaults of these arguments of a call.
    output_hidden_states: bool = False
    output_attentions: bool = False

    def __post_init__(self):
        if self.engine not in ENGINES:
            raise ValueError(f"engine {self.engine!r} is not one of {', '.join(ENGINES)}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EncoderOptions":
        """Returns saved options, without those that this version no longer has."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})

    def check_outputs(self, hidden_states: bool, attentions: bool) -> None:
        """Raises a ValueError if a model with these options can't return outputs of each block."""
        is_set = {
            f'engine="{self.engine}"': self.engine != "unrolled",
            "needed_outputs_only": self.needed_outputs_only,
            "remat": self.remat and attentions,
        }
        if conflicts := [name for name in is_set if is_set[name]]:
            for name, is_asked in (
                ("output_attentions", attentions), ("output_hidden_states", hidden_states),
            ):
                if is_asked:
                    raise ValueError(f"{name} does not go with {', '.join(conflicts)}")

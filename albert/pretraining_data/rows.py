"""From pairs to the features of records, and to what people read of them."""

import dataclasses

import numpy as np

from albert.pretraining_data import masking, pair_records
from albert.pretraining_data.draws import draw_keys
from albert.pretraining_data.recipe import Recipe, load_pieces, load_tokenizer


@dataclasses.dataclass
class TrainingInstance:
    """One pair with its predictions, for people to read."""

    tokens: list[str]
    segment_ids: list[int]
    masked_lm_positions: list[int]
    masked_lm_labels: list[str]
    is_random_next: bool
    token_boundary: list[int]
    lost: int = dataclasses.field(default=0, repr=False)  # tokens that were cut off

    def __str__(self) -> str:
        lines = []
        for field in filter(lambda field: field.repr, dataclasses.fields(self)):
            value = getattr(self, field.name)
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            lines.append(f"{field.name}: {text}")
        return "\n".join(lines) + "\n"


def make_features(
    recipe: Recipe,
    ids: np.ndarray,
    starts: np.ndarray,
    table: np.ndarray,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Returns the features of B records: see `Recipe.feature_spec`.

    Args:
      ids: tokens, A before B of every pair.
      starts: [B], where each pair begins in `ids`.
      table: [B, 4], see `DealtPairs.table`.
    """
    pieces, column = load_pieces(recipe), np.arange(recipe.pairs.max_seq_length)
    length_a, lengths = table[:, :1], pair_records.lengths_of(table[:, :2])[:, None]
    source = (starts[:, None] - 1) + column
    source -= column > length_a + 1
    # Before the first token and after the last one, any will do: others come there.
    unmasked = ids.take(source, mode="clip").astype(np.int64)
    unmasked *= column < lengths
    unmasked[:, 0] = pieces.cls_id
    for place in (length_a + 1, lengths - 1):
        np.put_along_axis(unmasked, place, pieces.sep_id, axis=1)
    boundary = masking.token_boundaries(unmasked, lengths[:, 0], pieces)
    segments, labels = table[:, :2].astype(np.int64), table[:, 2:3].astype(np.int64)
    told = {"token_boundary": boundary, "segment_lengths": segments}
    if not recipe.static_masks:
        return told | {"input_ids": unmasked, "next_sentence_labels": labels}
    keys = draw_keys(len(table), rng)
    return told | pair_records.mask_rows(
        unmasked, segments, boundary, labels, pieces.specials, recipe.masking, keys
    )


def describe_row(recipe: Recipe, batch: dict[str, np.ndarray], row: int) -> str:
    """Returns a row of `make_features` as text."""
    names = load_tokenizer(recipe).convert_ids_to_tokens
    in_a = int(batch["segment_lengths"][row, 0])
    length = int(pair_records.lengths_of(batch["segment_lengths"][row : row + 1])[0])
    count = int(batch["masked_lm_weights"][row].sum()) if recipe.static_masks else 0

    def masked(feature: str) -> list[int]:
        return batch[feature][row, :count].tolist() if count else []

    return str(TrainingInstance(
        tokens=names(batch["input_ids"][row, :length]),
        segment_ids=[0] * (in_a + 2) + [1] * (length - in_a - 2),
        masked_lm_positions=masked("masked_lm_positions"),
        masked_lm_labels=names(masked("masked_lm_ids")),
        is_random_next=bool(batch["next_sentence_labels"][row, 0]),
        token_boundary=batch["token_boundary"][row, :length].tolist(),
    ))

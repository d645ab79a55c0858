"""How many parameters an architecture has, computed from its config: nothing is allocated."""

from albert.config import AlbertConfig


def parameter_counts(config: AlbertConfig) -> dict[str, int]:
    """Returns {part: parameters} of a pretraining model.

    Parts: embeddings, encoder, pooler (together the backbone, `bert/*`),
    masked_lm and sentence_order (the heads, `cls/*`; the masked-LM output
    matrix is the word-embedding table and not counted again).
    """
    v, e, h = config.vocab_size, config.embedding_size, config.hidden_size
    norm_e, norm_h = 2 * e, 2 * h
    tables = (v + config.type_vocab_size + config.max_position_embeddings) * e
    projection = dense(e, h) if config.has_embedding_projection else 0
    attention = 4 * dense(h, h) + norm_h
    feed_forward = (
        dense(h, config.intermediate_size) + dense(config.intermediate_size, h) + norm_h
    )
    blocks = _groups_in_use(config) * config.inner_group_num
    return {
        "embeddings": tables + norm_e,
        "encoder": projection + blocks * (attention + feed_forward),
        "pooler": dense(h, h),
        "masked_lm": dense(h, e) + norm_e + v,
        "sentence_order": dense(h, 2),
    }


def parameter_count(config: AlbertConfig, with_pooler: bool = True, heads: bool = False) -> int:
    """Returns the parameters of the backbone, or of the pretraining model with `heads`."""
    counts = parameter_counts(config)
    parts = ["embeddings", "encoder"] + ["pooler"] * with_pooler
    parts += ["masked_lm", "sentence_order"] * heads
    return sum(counts[part] for part in parts)


def dense(inputs: int, outputs: int) -> int:
    """Returns the parameters of a dense layer: its kernel and its bias."""
    return inputs * outputs + outputs


def _groups_in_use(config: AlbertConfig) -> int:
    """The groups that some layer uses; rounding can leave one out (see `group_of_layer`)."""
    return len({config.group_of_layer(i) for i in range(config.num_hidden_layers)})

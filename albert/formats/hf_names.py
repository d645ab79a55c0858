"""Maps the names of our weights to those of Hugging Face's ALBERT, and back, and BERT's names to both.

Their kernels are [out, in], ours [in, out]. Names begin with `albert.` in models with a head, but not
in the bare encoder. They have no head for SQuAD 2.0, so its weights keep our names.
"""

import re

# Copies of other tensors, and buffers that hold no weight.
TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}
BUFFERS = ("albert.embeddings.position_ids", "albert.embeddings.token_type_ids")
MAPPING = "bert/encoder/embedding_hidden_mapping_in/"  # exists there even if E = H
BLOCK = re.compile(r"bert/encoder/transformer/group_(\d{1,4})/inner_group_(\d{1,4})/(.+)")
_THEIR_BLOCK = re.compile(
    r"albert\.encoder\.albert_layer_groups\.(\d{1,4})\.albert_layers\.(\d{1,4})\.(.+)"
)

_DENSE = {"kernel": "weight", "bias": "bias"}
_NORM = {"gamma": "weight", "beta": "bias"}
_LOGITS = {"output_weights": "weight", "output_bias": "bias"}
_TABLES = {
    name: f"{name}.weight"
    for name in ("word_embeddings", "token_type_embeddings", "position_embeddings")
}
_OUTSIDE = (
    ("bert/embeddings/", "albert.embeddings.", _TABLES),
    ("bert/embeddings/LayerNorm/", "albert.embeddings.LayerNorm.", _NORM),
    (MAPPING, "albert.encoder.embedding_hidden_mapping_in.", _DENSE),
    ("bert/pooler/dense/", "albert.pooler.", _DENSE),
    ("cls/predictions/", "predictions.", {"output_bias": "bias"}),
    ("cls/predictions/transform/dense/", "predictions.dense.", _DENSE),
    ("cls/predictions/transform/LayerNorm/", "predictions.LayerNorm.", _NORM),
    ("cls/seq_relationship/", "sop_classifier.classifier.", _LOGITS),
    ("cls/squad/", "qa_outputs.", _LOGITS),
    ("", "classifier.", _LOGITS),
)
_INSIDE = (
    ("attention_1/self/query/", "attention.query.", _DENSE),
    ("attention_1/self/key/", "attention.key.", _DENSE),
    ("attention_1/self/value/", "attention.value.", _DENSE),
    ("attention_1/output/dense/", "attention.dense.", _DENSE),
    ("LayerNorm/", "attention.LayerNorm.", _NORM),
    ("ffn_1/intermediate/dense/", "ffn.", _DENSE),
    ("ffn_1/intermediate/output/dense/", "ffn_output.", _DENSE),
    ("LayerNorm_1/", "full_layer_layer_norm.", _NORM),
)


def _names(scopes) -> dict[str, str]:
    return {
        ours + leaf: theirs + their_leaf
        for ours, theirs, leaves in scopes for leaf, their_leaf in leaves.items()
    }


# BERT's names, and ALBERT's.
_OF_BERT = (
    (r"bert\.", "albert."),
    (r"((?:albert\.)?encoder)\.layer\.(\d+)\.", r"\1.albert_layer_groups.\2.albert_layers.0."),
    (r"(.*\.attention)\.(?:self|output)\.", r"\1."),
    (r"(.*)\.intermediate\.dense\.", r"\1.ffn."),
    (r"(.*\.albert_layers\.0)\.output\.dense\.", r"\1.ffn_output."),
    (r"(.*\.albert_layers\.0)\.output\.LayerNorm\.", r"\1.full_layer_layer_norm."),
    (r"((?:albert\.)?pooler)\.dense\.", r"\1."),
    (r"cls\.(predictions\.)(?:transform\.)?", r"\1"),
    (r"cls\.seq_relationship\.", "sop_classifier.classifier."),
)

# {ours: theirs}, outside the blocks, and relative to a block.
_THEIRS, _THEIRS_OF_BLOCK = _names(_OUTSIDE), _names(_INSIDE)
_OURS = {theirs: ours for ours, theirs in _THEIRS.items()}
_OURS_OF_BLOCK = {theirs: ours for ours, theirs in _THEIRS_OF_BLOCK.items()}


def their_name(name: str) -> str:
    """Returns Hugging Face's name of a weight; for a head that they lack, the same name."""
    block = BLOCK.fullmatch(name)
    if not block:
        return _THEIRS.get(name, name)
    scope = f"albert.encoder.albert_layer_groups.{block[1]}.albert_layers.{block[2]}."
    return scope + _THEIRS_OF_BLOCK[block[3]]


def our_name(name: str) -> str | None:
    """Returns our name of a tensor of Hugging Face's, or None if we don't have it."""
    if "/" in name and not name.startswith("bert/"):  # of a head that they lack
        return name
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))  # old files
    block = _THEIR_BLOCK.fullmatch(name)
    if not block:
        return _OURS.get(name)
    inner = _OURS_OF_BLOCK.get(block[3])
    return inner and f"bert/encoder/transformer/group_{block[1]}/inner_group_{block[2]}/{inner}"


def from_bert(name: str) -> str:
    """Returns the name in their ALBERT of a tensor of their BERT, in which each layer is a group."""
    for pattern, replacement in _OF_BERT:
        name = re.sub("^" + pattern, replacement, name)
    return name

"""The part of a vocabulary that a text uses."""

import itertools
from collections.abc import Iterator

import numpy as np

from albert.storage import files
from albert.tokenization import SPIECE_UNDERLINE, FullTokenizer

_LINES = 4096  # tokenized at once


def write_used(tokenizer: FullTokenizer, lines: Iterator[str], prefix: str) -> int:
    """Writes the part of a vocabulary that a text uses: PREFIX.model or PREFIX.txt.

    Special tokens and single characters stay, so that any text can still be read.

    Args:
      lines: the text.

    Returns:
      its number of entries, in their former order.
    """
    is_used = np.zeros(len(tokenizer.vocab), bool)
    is_used[list(tokenizer.special_ids)] = True
    for token, i in tokenizer.vocab.items():
        is_used[i] |= len(token.removeprefix("##").removeprefix(SPIECE_UNDERLINE)) <= 1
    while batch := list(itertools.islice(lines, _LINES)):
        is_used[tokenizer.encode_flat(batch)[0]] = True
    if tokenizer.is_spm:
        from sentencepiece import sentencepiece_model_pb2

        model = sentencepiece_model_pb2.ModelProto.FromString(
            tokenizer.sp_model.serialized_model_proto())
        used = [piece for piece, keep in zip(model.pieces, is_used) if keep or piece.type != 1]
        del model.pieces[:]
        model.pieces.extend(used)
        with files.atomic_write(f"{prefix}.model", "wb") as stream:
            stream.write(model.SerializeToString(deterministic=True))
        return len(used)
    with files.atomic_write(f"{prefix}.txt") as stream:
        stream.writelines(f"{token}\n" for token, i in tokenizer.vocab.items() if is_used[i])
    return int(is_used.sum())

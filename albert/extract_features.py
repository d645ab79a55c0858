"""Computes embeddings of texts, one per line.

  python -m albert.extract_features --model=small_en \\
      --input_file=sentences.txt --output_file=vectors.npz

--output_file ends in .jsonl (one object a line: text and vector) or in .npz (vectors [N, D]). Lines
keep their order. For the vectors of tokens or of other layers, see `output_hidden_states` of
`AlbertModel`.
"""

import numpy as np

from albert.cli import answering, flags
from albert.errors import FlagError
from albert.inference.predictors import POOLINGS, Embedder, numbers
from albert.runtime.progress import Progress
from albert.storage import files


def define_flags(values: flags.FlagValues) -> None:
    answering.define_flags(values)
    flags.define("path", values, "output_file", None,
                 "File for the vectors, *.jsonl or *.npz. Required.", use="output")
    flags.define("enum", values, "pooling", None,
                 "Vector of a line: the mean over all tokens, [CLS] and [SEP] included; the output at "
                 "[CLS]; or the pooled output, a trained layer on [CLS]. Default: as the files of "
                 "sentence-transformers next to the model say, else mean.",
                 enum_values=POOLINGS)


def main(values: flags.FlagValues) -> None:
    answering.check_flags(values)
    flags.require(values, "output_file")
    if not values.output_file.endswith((".jsonl", ".npz")):
        raise FlagError(f"--output_file={values.output_file} ends neither in .jsonl nor in .npz")
    embedder = Embedder(answering.open_model(values), values.pooling)
    texts = answering.read_texts(values.input_file)
    vectors = embedder.predict(texts, Progress("embedded", len(texts), "lines"))
    if values.output_file.endswith(".npz"):
        with files.atomic_write(values.output_file, "wb") as stream:
            np.savez(stream, vectors=np.stack(list(vectors)))
    else:
        answering.write_lines((
            {"text": text, "vector": numbers(vector)} for text, vector in zip(texts, vectors, strict=True)
        ), values.output_file)
    flags.log.info("wrote %s vectors: %s", f"{len(texts):,}", values.output_file)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

"""The side of Rust's tokenizers: lines of text to ids. Imports nothing from the project."""

import serve


def prepare(spec):
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(spec["tokenizer"])
    with open(spec["text"], encoding="utf-8", newline="\n") as stream:
        texts = stream.read().split("\n")

    def turn():
        return tokenizer.encode_batch(texts, add_special_tokens=False)

    return turn, {"ids": [i for encoding in turn() for i in encoding.ids]}


serve.serve(prepare)

"""Times the alignment of SQuAD's passages against a plain table in Python, on the same passages.

  python scripts/benchmark_squad_alignment.py --squad_file=dev-v2.0.json \\
      --spm_model_file=30k-clean.model --output_file=alignment.json

The plain side fills the table of the original cell by cell, as its code reads,
with the characters cleaned once beforehand. Both take turns; that the results
are equal is checked first. Prints medians and their ratio, for all passages and
for those that need a table: most differ from their pieces by the space in
front alone, and are aligned without one.
"""

import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

from albert import files, flags, squad_alignment, squad_features, tokenization  # noqa: E402


def define_flags(values: flags.FlagValues) -> None:
    flags.define("string", values, "squad_file", None, "SQuAD JSON with the passages. Required.")
    flags.define("string", values, "spm_model_file", None, "SentencePiece model. Required.")
    flags.define("integer", values, "passages", 100, "Passages to align.")
    flags.define("integer", values, "rounds", 5, "Turns of each side.")
    flags.define("string", values, "output_file", None, "Write the figures there as JSON.")


def plain(original, cleaned):
    """Fills the table and follows the pointers, as spec'd by the original; returns the links."""
    n, m = len(original), len(cleaned)
    if not n or not m:
        return {}
    band = abs(n - m) + 5
    for _ in range(2):
        table = [[0] * m for _ in range(n)]
        pointers = {}
        for i in range(n):
            for j in range(max(0, i - band), min(m, i + band)):
                value = 0
                if i > 0:
                    pointers[i, j] = 0
                    value = table[i - 1][j]
                if j > 0 and table[i][j - 1] > value:
                    pointers[i, j] = 1
                    value = table[i][j - 1]
                diagonal = table[i - 1][j - 1] if i > 0 and j > 0 else 0
                if original[i] == cleaned[j] and diagonal + 1 > value:
                    pointers[i, j] = 2
                    value = diagonal + 1
                table[i][j] = value
        if table[n - 1][m - 1] > 0.8 * n:
            break
        band *= 2
    links, i, j = {}, n - 1, m - 1
    while (i, j) in pointers:
        pointer = pointers[i, j]
        if pointer == 2:
            links[i] = j
        i, j = i - (pointer != 1), j - (pointer != 0)
    return links


def links_of(alignment) -> dict[int, int]:
    return {i: j for i, j in enumerate(alignment.to_cleaned.tolist()) if j >= 0}


def compare(texts, rounds: int) -> dict:
    """Checks that both sides agree on the texts, and returns what each side takes."""
    for text in texts:
        alignment, expected = squad_alignment.align(*text), plain(*text)
        # What is refused as a mismatch has fewer links than the least that is accepted.
        links = expected if alignment is None else links_of(alignment)
        assert links == expected
        assert (alignment is None) == (not links or len(links) < 0.8 * len(text[0]))
    sides = {
        "plain": lambda: [plain(*text) for text in texts],
        "ours": lambda: [squad_alignment.align(*text) for text in texts],
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            started = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        "passages": len(texts),
        "characters": sum(len(original) for original, _ in texts),
        "rounds": rounds,
        "median_seconds": medians,
        "spread_seconds": {name: [min(each), max(each)] for name, each in seconds.items()},
        "ratio": medians["plain"] / medians["ours"],
    }


def main(values: flags.FlagValues) -> None:
    flags.require(values, "squad_file", "spm_model_file")
    flags.require_positive(values, "passages", "rounds")
    tokenizer = tokenization.FullTokenizer(
        None, True, files.require_file(values.spm_model_file, "spm_model_file")
    )
    examples = squad_features.read_examples(values.squad_file, False)
    passages = dict.fromkeys(example.paragraph_text for example in examples)
    texts = [squad_features.code_points(tokenizer, passage) for passage in passages]
    groups = {
        "all": texts[: values.passages],
        "with_table": [t for t in texts if t[0] != t[1][1:]][: values.passages],
    }
    results = {name: compare(group, values.rounds) for name, group in groups.items() if group}
    if values.output_file:
        files.write_json(values.output_file, results)
    print(json.dumps(results, indent=2))
    for name, result in results.items():
        print(f"{name}: ours is {result['ratio']:.1f} times as fast as the plain table")


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

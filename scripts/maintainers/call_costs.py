"""Compares the cost of each way to call a model: the first answer, and later ones to single texts.

  python scripts/maintainers/call_costs.py --config=base_v2

A classifier with random weights reads texts of ten lengths, one at a time, in each of four ways in
turn: `model(x)`, `albert.compiled(model)(x)`, `model.predict(x)` and a session. It prints the
processor and, relative to the compiled call, the time of the first call, of the first calls at the
other nine lengths, and of later calls (median).
"""

import argparse
import pathlib
import platform
import re
import statistics
import tempfile
import time

import numpy as np

LENGTHS = (20, 8, 32, 12, 40, 5, 27, 16, 36, 24)  # in tokens, with [CLS] and [SEP]


def processor() -> str:
    """Returns the processor's name."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    return re.search(r"model name\s*: (.*)", text)[1]


def ways(config) -> dict:
    """Returns, for each way, a function from a number of tokens to an answer."""
    import albert

    model = albert.AlbertForSequenceClassification(config, 2)
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"w{i}" for i in range(config.vocab_size - len(special))]
    pathlib.Path(folder, "vocab.txt").write_text("\n".join([*special, *words]))
    session = albert.open_session(folder)
    tokenizer = albert.AlbertTokenizer.from_pretrained(folder)

    def text(length: int) -> str:
        return " ".join(words[: length - 2])

    call = albert.compiled(model)
    return {
        "model(x)": lambda n: np.asarray(model(tokenizer(text(n), padding=True, return_tensors="np"))["logits"]),
        "compiled(model)(x)": lambda n: np.asarray(call(tokenizer(text(n), padding=True, return_tensors="np"))["logits"]),
        "model.predict(x)": lambda n: model.predict(tokenizer(text(n), padding=True, return_tensors="np"), verbose=0)["logits"],
        "session.classify(text)": lambda n: session.classify(text(n)),
    }


def seconds(function, *arguments) -> float:
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="base_v2", help="a released architecture or a file")
    parser.add_argument("--rounds", type=int, default=5, help="times that each length is read")
    given = parser.parse_args()
    from albert.formats import huggingface

    first: dict[str, float] = {}
    lengths: dict[str, float] = {}
    later: dict[str, list[float]] = {}
    every = ways(huggingface.read_config(given.config))
    for name, answer in every.items():
        first[name] = seconds(answer, LENGTHS[0])
        lengths[name] = sum(seconds(answer, n) for n in LENGTHS[1:])
        later[name] = []
    for _ in range(given.rounds):
        for n in LENGTHS:
            for name, answer in every.items():
                later[name].append(seconds(answer, n))
    columns = first, lengths, {name: statistics.median(times) for name, times in later.items()}
    print(f"{processor()}; {given.config}, one text at a time; time relative to the compiled call")
    print("| way | first call | nine other lengths, first calls | later calls |")
    print("|---|---|---|---|")
    for name in every:
        ratios = (column[name] / column["compiled(model)(x)"] for column in columns)
        print(f"| `{name}` | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")


if __name__ == "__main__":
    main()

"""Writes the tables of the README, albert/examples/*.csv: what a Python function does, and its field.

  python scripts/maintainers/make_examples.py

A text is the first sentence of a docstring in the standard library of the running Python (PSF
licence), its label the kind of module that it is from, no text twice. The files are of Python 3.11.
"""

import csv
import pathlib
import random
import sys
import sysconfig

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "scripts/quickstart"))

from text import docstrings, sentences_of  # noqa: E402

MODULES = {
    "files": "bz2 filecmp fileinput glob gzip lzma ntpath os pathlib posixpath shutil stat tarfile tempfile zipfile",
    "graphics": "tkinter turtle",
    "mathematics": "_pydecimal fractions numbers random statistics",
    "network": "ftplib http imaplib ipaddress nntplib poplib smtplib socket socketserver ssl telnetlib urllib xmlrpc",
    "parallel": "asyncio concurrent multiprocessing queue sched subprocess threading",
}
ROWS = {"train": 100, "test": 60}  # of each label
MIN_WORDS, MAX_WORDS = 5, 20


def first_sentences(names: str) -> set[str]:
    """Returns the usable first sentences of the docstrings of modules and packages."""
    found, stdlib = set(), pathlib.Path(sysconfig.get_path("stdlib"))
    for name in names.split():
        for path in [stdlib / f"{name}.py", *(stdlib / name).rglob("*.py")]:
            if path.exists() and "test" not in path.parts:
                found |= {next(sentences_of(text), "") for text in docstrings(path)}
    return {sentence for sentence in found if MIN_WORDS <= len(sentence.split()) <= MAX_WORDS}


def main() -> None:
    rng, seen, rows = random.Random(1), set(), {name: [] for name in ROWS}
    for label, names in MODULES.items():
        texts = sorted(first_sentences(names) - seen)
        seen.update(texts)
        rng.shuffle(texts)
        for name, count in ROWS.items():
            rows[name] += [(texts.pop(), label) for _ in range(count)]
    for name in ROWS:
        rng.shuffle(rows[name])
        with open(REPO / f"albert/examples/{name}.csv", "w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerows([("text", "label"), *rows[name]])


if __name__ == "__main__":
    main()

"""Measures embeddings without any fine-tuning, next to TF-IDF: similarity and retrieval.

  python scripts/maintainers/embedding_quality.py --glue_dir=glue --squad_file=dev-v2.0.json

Prints a table. STS-B (dev): Spearman's correlation of the cosines with the ratings. Retrieval, recall
at 10 and at 1: the question of a SQuAD paragraph finds it among all paragraphs of the file; a
question of QNLI (dev, the first 1,000 with an answer) finds its sentence among the others'. Errors
are standard errors over questions and pairs, by 200 bootstrap samples. TF-IDF is fitted on the texts
that are searched or compared, as a user would; nothing else is fitted on anything.
"""

import argparse
import csv
import json
import pathlib
import sys
from collections.abc import Callable

import numpy as np
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

import albert  # noqa: E402

Embed = Callable[[list[str]], np.ndarray]  # from texts to vectors [N, D]


def read_rows(path: pathlib.Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


def read_squad(path: str) -> tuple[list[str], list[str], list[int]]:
    """Returns questions, paragraphs and the paragraph of each question that has an answer."""
    articles = json.loads(pathlib.Path(path).read_text("utf-8"))["data"]
    paragraphs = [part for article in articles for part in article["paragraphs"]]
    asked = [(question["question"], i) for i, part in enumerate(paragraphs)
             for question in part["qas"] if question["answers"]]
    questions, found_in = zip(*asked, strict=True)
    return list(questions), [part["context"] for part in paragraphs], list(found_in)


def read_qnli(path: pathlib.Path) -> tuple[list[str], list[str], list[int]]:
    """Returns questions, different sentences and the sentence of each question."""
    rows = [row for row in read_rows(path) if row["label"] == "entailment"][:1000]
    sentences = list(dict.fromkeys(row["sentence"] for row in rows))
    return ([row["question"] for row in rows], sentences,
            [sentences.index(row["sentence"]) for row in rows])


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def tfidf(**options) -> Callable[[list[str]], Embed]:
    return lambda texts: lambda some: (
        TfidfVectorizer(sublinear_tf=True, **options).fit(texts).transform(some).toarray()
    )


def with_error(measure: Callable[[np.ndarray], float], count: int) -> str:
    rng = np.random.default_rng(0)
    samples = [measure(rng.integers(0, count, count)) for _ in range(200)]
    return f"{measure(np.arange(count)):.3f} ± {np.std(samples):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="small_en")
    parser.add_argument("--glue_dir", type=pathlib.Path, required=True)
    parser.add_argument("--squad_file", required=True)
    args = parser.parse_args()
    pairs = read_rows(args.glue_dir / "STS-B/dev.tsv")
    ones, others = ([row[name] for row in pairs] for name in ("sentence1", "sentence2"))
    ratings = np.array([float(row["score"]) for row in pairs])
    searches = read_squad(args.squad_file), read_qnli(args.glue_dir / "QNLI/dev.tsv")
    session = albert.open_session(args.model)
    methods = {
        "the session's": lambda _: session.embed,
        "TF-IDF, words, sublinear": tfidf(),
        "TF-IDF, 2-4 characters, sublinear": tfidf(analyzer="char_wb", ngram_range=(2, 4)),
    }
    print("| vectors | STS-B | SQuAD, at 10 | at 1 | QNLI, at 10 | at 1 |\n|---|---|---|---|---|---|")
    for name, fitted in methods.items():
        embed = fitted(ones + others)
        cosines = (unit(embed(ones)) * unit(embed(others))).sum(axis=1)
        cells = [with_error(lambda i, c=cosines: spearmanr(c[i], ratings[i])[0], len(pairs))]
        for questions, texts, found_in in searches:
            embed = fitted(texts)
            scores = unit(embed(questions)) @ unit(embed(texts)).T
            ranks = (scores > scores[np.arange(len(questions)), found_in][:, None]).sum(axis=1)
            cells += [with_error(lambda i, r=ranks, k=k: (r[i] < k).mean(), len(questions))
                      for k in (10, 1)]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

"""Measures what starting from small_en gains over random weights when pretraining on a small text.

  python scripts/maintainers/own_text_gains.py --input_file=my.txt --output_dir=own_text_work

For each of two vocabularies, one trained on the text and small_en's, it runs the grid
configs/ablations/own_text.json: same architecture, records and held-out documents for both starts. Prints and writes own_text.json: curves, and the
fraction of the tokens after which small_en reaches the final loss of random weights. Loss is per
token, so it is comparable within one vocabulary only; next to it is the loss per word, in nats,
from the number of tokens per word. It resumes where it stopped.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(REPO / "scripts")]

from ablation import report  # noqa: E402
from albert.formats import model_card  # noqa: E402
from albert.storage import files, shipped  # noqa: E402
from albert.tokenization import FullTokenizer  # noqa: E402

EVIDENCE = ("own_text.json",)  # the results in the documentation
GRID = REPO / "configs/ablations/own_text.json"
RANDOM = "random weights"
POINT = ("step", "tokens", "minutes", "masked_lm_loss", "masked_lm_accuracy")


def command(*program: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    done = subprocess.run([sys.executable, *program], env=environment)
    if done.returncode:
        sys.exit(done.returncode)


def pieces_per_word(corpus: pathlib.Path, spm_model_file: str) -> float:
    lines = [line for line in corpus.read_text("utf-8").splitlines() if line]
    encoded = FullTokenizer(None, spm_model_file=spm_model_file).encode_batch(lines)
    return sum(map(len, encoded)) / sum(len(line.split()) for line in lines)


def told(results: list[dict], per_word: float) -> dict:
    """Returns the curves of one vocabulary's settings, and when each start reaches the goal."""
    curves = {
        one["setting"]: [
            {key: point[key] for key in POINT}
            | {"loss_of_a_word": point["masked_lm_loss"] * per_word} for point in one["curve"]
        ]
        for one in results
    }
    last = curves[RANDOM][-1]
    reached = {
        name: report.time_to(curve, "masked_lm_loss", last["masked_lm_loss"], False, "tokens")
        for name, curve in curves.items() if name != RANDOM
    }
    return {
        "pieces_per_word": per_word, "goal": last["masked_lm_loss"],
        "share_of_the_tokens": {
            name: tokens and tokens / last["tokens"] for name, tokens in reached.items()
        },
        "curves": curves,
    }


def table(found: dict) -> str:
    """Returns the results as a Markdown table."""
    rows = []
    for name, part in found["vocabularies"].items():
        for start, curve in sorted(part["curves"].items(), key=lambda one: one[0] != RANDOM):
            share = part["share_of_the_tokens"].get(start)
            rows.append((
                name, start, f"{curve[-1]['step']:,}", f"{curve[-1]['masked_lm_loss']:.2f}",
                f"{curve[-1]['loss_of_a_word']:.2f}", f"{curve[-1]['masked_lm_accuracy']:.3f}",
                "" if start == RANDOM else "never" if share is None else f"{share:.2f}",
            ))
    return model_card.table((
        "vocabulary", "from", "steps", "loss of a token", "of a word, nats", "masked tokens predicted",
        "fraction of the steps to the loss of random weights",
    ), rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, type=pathlib.Path)
    parser.add_argument("--input_file", required=True, help="a text")
    parser.add_argument("--vocab_size", default=4000, type=int,
                        help="size of the vocabulary that is trained on the text")
    parser.add_argument("flags", nargs="*", help="after --: more flags of ablate")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    out = arguments.output_dir.absolute()
    text, own = out / "text", out / "own"
    if not (text / "stats.json").exists():
        command("-m", "albert.prepare_text", f"--output_dir={text}", f"--input_file={arguments.input_file}")
    corpus = text / "corpus.txt"
    if not own.with_suffix(".model").exists():
        command("-m", "albert.train_sentencepiece", f"--input={corpus}", f"--model_prefix={own}",
                f"--vocab_size={arguments.vocab_size}")
    vocabularies = {
        "of the text": f"{own}.model",
        "of small_en": shipped.vocabulary_of("small_en"),
    }
    found = {"corpus": json.loads((text / "stats.json").read_text("utf-8"))["corpus"],
             "vocabularies": {}}
    for name, spm_model_file in vocabularies.items():
        folder = out / name.replace(" ", "_")
        command(str(REPO / "scripts/ablate.py"), f"--grid={GRID}", f"--input_file={corpus}",
                f"--spm_model_file={spm_model_file}", f"--output_dir={folder}", *arguments.flags)
        results = json.loads((folder / "results.json").read_text("utf-8"))
        per_word = pieces_per_word(corpus, spm_model_file)
        found["vocabularies"][name] = told(results, per_word)
        files.write_json(str(out / "own_text.json"), found)
    print(json.dumps(found, indent=1))
    print(table(found), file=sys.stderr)


if __name__ == "__main__":
    main()

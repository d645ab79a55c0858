"""Reports what a model has learned from the text it was pretrained on (pretrain_from_text's report.md).

Legend: N sentences, D size of a vector.
"""

import itertools
import logging
import os
from collections.abc import Sequence

import numpy as np

from albert.formats import run_states
from albert.formats.model_card import table
from albert.inference.answering_session import AnsweringSession, open_session
from albert.pretraining_data.features import SEGMENT_LENGTHS, pair_features
from albert.records import record_files
from albert.records.examples import FeatureSpec, decode_examples
from albert.records.manifests import Manifest
from albert.records.tfrecord import read_records
from albert.storage import files
from albert.tokenization import FullTokenizer

log = logging.getLogger("albert")

_EXAMPLES = 10
_MAX_LOST = 0.1  # fraction of the tokens
_RISE = 0.05  # of a held-out loss: less may be noise
_SENTENCES = 400  # to search for neighbours
_NEIGHBOURS = 3
_BLANK = "▁"  # how SentencePiece writes the blank before a word
_NEXT = """## What next

Vectors, masked words, and a classifier from labelled texts (`text` and `label` columns):

    python -m albert.extract_features --model={model} --input_file=sentences.txt --output_file=vectors.npz
    echo "A text with a [MASK]." | python -m albert.fill_mask --model={model}
    python -m albert.run_classifier --init_checkpoint={model} --train_file=labelled.csv --output_dir=classifier
"""


def coverage(records_file: str) -> str:
    """Returns a sentence about the share of the text that is in the records; warns below 90 %."""
    lost = Manifest.read(records_file).info["report"]["cut_tokens"]
    text = f"The records hold {100 * (1 - lost):.1f} % of the text's tokens"
    if lost > _MAX_LOST:
        log.warning("%s: the model never sees the others", text)
    return text


def write(path: str, model: str, held_out: str, notes: Sequence[str]) -> str:
    """Publishes the report and returns its path.

    Args:
      model: directory of run_pretraining.
      held_out: record file without masks.
      notes: sentences about the text and the training.
    """
    results = files.read_json_object(os.path.join(model, "eval_results.json"))
    session = open_session(model)
    segments = _segments(held_out, session.tokenizer)
    parts = [
        "# Model pretrained on your text\n", "".join(f"{note}.\n" for note in notes),
        table(("on held-out text", "model", "always the most frequent answer"), [
            (name, f"{100 * results[f'{key}_accuracy']:.1f} %",
             f"{100 * results[f'{key}_accuracy_baseline']:.1f} %")
            for name, key in (("masked tokens", "masked_lm"), ("sentence order", "sentence_order"))
        ]),
        _verdict(results, [
            line["loss"] for line in run_states.evaluations(model) if line.get("loss") is not None
        ]),
        "## Masked words\n", _masked_words(session, segments),
        "## Nearest sentences\n", _nearest(session, segments),
        _NEXT.format(model=model),
    ]
    with files.atomic_write(path) as stream:
        stream.write("\n".join(parts))
    return path


def _verdict(results: dict[str, float], losses: Sequence[float]) -> str:
    """Interprets the last results, and the held-out losses of all evaluations, in order."""
    if losses and losses[-1] > min(losses) + _RISE:
        part = (1 + losses.index(min(losses))) / len(losses)
        return (f"It overfits: the held-out loss was lowest after {100 * part:.0f} % of the training, and "
                "rose since. More text helps; more --hours don't.\n")
    accuracy, baseline = (results[f"masked_lm_accuracy{x}"] for x in ("", "_baseline"))
    if accuracy < max(1.5 * baseline, baseline + 0.05):
        return ("It has learned little more than token frequencies: give it more --hours or, for "
                "English, --start_from=small_en.\n")
    if accuracy < 0.35:
        return "It knows words and short phrases. More --hours, or more text, would still help.\n"
    return "It predicts words from their sentences. Fine-tune it on labelled texts.\n"


def _segments(held_out: str, tokenizer: FullTokenizer) -> list[list[str]]:
    """Returns the tokens of the first segments of held-out records."""
    length = len(record_files.first_record(held_out)["input_ids"])
    first = list(itertools.islice(read_records(held_out), _SENTENCES))
    rows = decode_examples(first, FeatureSpec(pair_features(length)))
    counts = rows[SEGMENT_LENGTHS][:, 0]
    return [
        tokenizer.convert_ids_to_tokens([int(i) for i in ids[1 : 1 + count]])
        for ids, count in zip(rows["input_ids"], counts, strict=True)
    ]


def _as_text(tokens: list[str]) -> str:
    if any(token.startswith(_BLANK) for token in tokens):
        return "".join(tokens).replace(_BLANK, " ").strip()
    return " ".join(tokens).replace(" ##", "")


def _masked_words(session: AnsweringSession, segments: list[list[str]]) -> str:
    """Returns a table of tokens masked in mid-segment (words if possible) with the predictions."""
    long = [tokens for tokens in segments if len(tokens) >= 8]
    questions = _questions(long, _is_word) or _questions(long, lambda tokens, i: True)
    if not questions:
        return "Too few held-out sentences.\n"
    answers = session.fill_mask([text for text, _ in questions], top_k=3)
    rows = [
        (text.replace("|", "\\|"), word, ", ".join(
            f"`{one['piece'].strip(_BLANK) or _BLANK}` {one['probability']:.2f}" for one in masks[0]
        ))
        for (text, word), masks in zip(questions, answers, strict=True)
    ]
    return table(("held-out text", "word", "guesses"), rows)


def _questions(segments: list[list[str]], may_be_masked) -> list[tuple[str, str]]:
    """Returns (text with [MASK], masked token) for the first segments with a token to mask."""
    questions = []
    for tokens in segments:
        positions = [i for i, token in enumerate(tokens)
                     if token.strip(_BLANK).isalpha() and may_be_masked(tokens, i)]
        if positions:
            i = positions[len(positions) // 2]
            blank = _BLANK * tokens[i].startswith(_BLANK)
            masked = [*tokens[:i], f"{blank}[MASK]", *tokens[i + 1 :]]
            questions.append((_as_text(masked), tokens[i].strip(_BLANK)))
    return questions[:_EXAMPLES]


def _is_word(tokens: list[str], i: int) -> bool:
    """Returns whether a SentencePiece token is a complete word."""
    ends = i + 1 < len(tokens) and tokens[i + 1].startswith(_BLANK)
    return ends and tokens[i].startswith(_BLANK)


def _nearest(session: AnsweringSession, segments: list[list[str]]) -> str:
    """Returns held-out texts, each with its nearest neighbours by mean vector."""
    texts = list(dict.fromkeys(_as_text(tokens) for tokens in segments if len(tokens) >= 5))
    if len(texts) < 2 * _NEIGHBOURS:
        return "Too few held-out sentences.\n"
    vectors = session.embed(texts, pooling="mean")  # [N, D]
    vectors = vectors - vectors.mean(axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-9
    rows = []
    for i in np.linspace(0, len(texts) - 1, _NEIGHBOURS, dtype=int):
        cosines = vectors @ vectors[i]
        best = [j for j in np.argsort(-cosines, kind="stable") if j != i][:_NEIGHBOURS]
        rows.append(f"{texts[i]}\n\n" + "".join(f"* {cosines[j]:.2f} {texts[j]}\n" for j in best))
    return "\n".join(rows)

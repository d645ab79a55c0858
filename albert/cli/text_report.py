"""Reports what a model has learned from the text it was pretrained on (pretrain_from_text's report.md).

Legend: N sentences, D size of a vector.
"""

import itertools
import math
import os
from collections.abc import Sequence

import numpy as np

from albert.cli import report_page, text_plan
from albert.formats import run_states
from albert.formats.model_card import table
from albert.inference.session import AnsweringSession, open_session
from albert.pretraining_data.features import SEGMENT_LENGTHS, pair_features
from albert.records import record_files
from albert.records.examples import FeatureSpec, decode_examples
from albert.records.manifests import Manifest
from albert.records.tfrecord import read_records
from albert.storage import files
from albert.tokenization import FullTokenizer

_EXAMPLES = 10
_RISE = 0.05  # of a held-out loss: less may be noise
_SENTENCES = 400  # to search for neighbours
_NEIGHBOURS = 3
_BLANK = "▁"  # how SentencePiece writes the blank before a word
_NEXT = """## What next

The model reads {length} tokens of a text; of longer texts, the rest is cut off.
Vectors, masked words, and a classifier from labelled texts (`text` and `label` columns):

    python -m albert.extract_features --model={model} --input_file=sentences.txt --output_file=vectors.npz
    echo "A text with a [MASK]." | python -m albert.fill_mask --model={model}
    python -m albert.run_classifier --init_checkpoint={model} --train_file=labelled.csv --output_dir=classifier
"""


def coverage(records_file: str) -> str:
    """Returns a sentence about the share of the text that is in the records."""
    lost = Manifest.read(records_file).info["report"]["cut_tokens"]
    return f"The records hold {100 * (1 - lost):.1f} % of the text's tokens"


def write(directory: str, model: str, held_out: str, notes: Sequence[str], epochs: float) -> str:
    """Publishes the report, and returns its path.

    Args:
      model: directory of run_pretraining.
      held_out: record file without masks.
      notes: sentences about the text and the training.
      epochs: how often the text was read.
    """
    results = files.read_json_object(os.path.join(model, "eval_results.json"))
    lines = [line for line in run_states.evaluations(model) if line.get("loss") is not None]
    # Every evaluation reads 1,024 sequences or more, if there are as many.
    session, count = open_session(model), min(record_files.RecordFiles([held_out]).count, 1024)
    segments = _segments(held_out, session.tokenizer)
    rows = []
    for name, key in (("masked tokens", "masked_lm"), ("sentence order", "sentence_order")):
        accuracy, baseline = (results[f"{key}_accuracy{x}"] for x in ("", "_baseline"))
        rows.append((name, f"{100 * accuracy:.1f} %", f"{100 * baseline:.1f} %",
                     _compared(accuracy, baseline, count)))
    if "teacher_similarity" in results:
        rows.append(("similarity to the teacher", f"{results['teacher_similarity']:.3f}", "0", ""))
    return report_page.publish(directory, "Model pretrained on your text", [
        "".join(f"* {note}.\n" for note in notes),
        table(("on held-out text", "model", "always the most frequent answer", ""), rows),
        _verdict(results, lines, epochs),
        "## Learning curve\n",
        report_page.curve(model, "masked_lm_accuracy", "sentence_order_accuracy"),
        "## Masked words\n", _masked_words(session, segments),
        "## Nearest sentences\n", _nearest(session, segments),
        _NEXT.format(model=model, length=session.source.config.max_position_embeddings),
    ])


def _compared(accuracy: float, baseline: float, count: int) -> str:
    """Returns whether an accuracy on `count` answers or more is above a baseline, beyond chance."""
    error = math.sqrt(accuracy * (1 - accuracy) / count)
    return "better" if accuracy - 2 * error > baseline else "**no clear difference**"


def _verdict(results: dict[str, float], evaluations: Sequence[dict[str, float]], epochs: float) -> str:
    """Interprets the last results, and says what the end of the training brought.

    Args:
      evaluations: loss and accuracy of masked tokens during training, in order.
      epochs: how often the text was read.
    """
    losses, accuracies = ([one[f"masked_lm_{key}"] for one in evaluations] for key in ("loss", "accuracy"))
    if losses[-1] > min(losses) + _RISE:
        part = (1 + losses.index(min(losses))) / len(losses)
        return (f"The model overfits: its held-out masked-token loss was lowest after {100 * part:.0f} % of the "
                "training, and has risen since. More text helps; more --hours don't.\n")
    accuracy, baseline = (results[f"masked_lm_accuracy{x}"] for x in ("", "_baseline"))
    known = "knows words and short phrases" if accuracy < 0.35 else "predicts words from their sentences"
    if accuracy < max(1.5 * baseline, baseline + 0.05):
        known = "has learned little more than token frequencies"
    gain = 100 * (accuracies[-1] - accuracies[(len(accuracies) - 1) // 2])
    if epochs > 0.99 * text_plan.MAX_PASSES:
        return f"The model {known}. It has read your text {epochs:.0f} times, the maximum: only more text helps much.\n"
    return f"The model {known}. The second half of the training gained {gain:.1f} points of masked tokens.\n"


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
    questions = []  # (text with [MASK], masked token)
    for tokens in segments:
        letters = [i for i, token in enumerate(tokens) if any(map(str.isalpha, token))]
        # A complete word begins with a blank, as does the token after it.
        words = [i for i in letters if [t[:1] for t in tokens[i : i + 2]] == [_BLANK, _BLANK]]
        is_known = not {"[UNK]", "<unk>"} & set(tokens)  # spelt in a text, they are other tokens
        if is_known and len(tokens) >= 8 and letters and len(questions) < _EXAMPLES:
            i = (words or letters)[len(words or letters) // 2]
            blank = _BLANK * tokens[i].startswith(_BLANK)
            masked = [*tokens[:i], f"{blank}[MASK]", *tokens[i + 1 :]]
            questions.append((_as_text(masked), tokens[i].strip(_BLANK)))
    if not questions:
        return "Too few held-out sentences.\n"
    answers = session.fill_mask([text for text, _ in questions], top_k=3)
    return table(("held-out text", "word", "predictions"), [
        (text.replace("|", "\\|"), word, ", ".join(
            f"`{one['piece'].strip(_BLANK) or _BLANK}` {one['probability']:.2f}" for one in masks[0]
        ))
        for (text, word), masks in zip(questions, answers, strict=True)
    ])


def _nearest(session: AnsweringSession, segments: list[list[str]]) -> str:
    """Returns held-out texts, each with its nearest neighbours."""
    texts = list(dict.fromkeys(_as_text(tokens) for tokens in segments if len(tokens) >= 5))
    if len(texts) < 2 * _NEIGHBOURS:
        return "Too few held-out sentences.\n"
    vectors, rows = session.embed(texts), []  # [N, D]
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for i in np.linspace(0, len(texts) - 1, _NEIGHBOURS, dtype=int):
        cosines = vectors @ vectors[i]
        best = [j for j in np.argsort(-cosines, kind="stable") if j != i][:_NEIGHBOURS]
        rows.append(f"{texts[i]}\n\n" + "".join(f"* {cosines[j]:.2f} {texts[j]}\n" for j in best))
    return "\n".join(rows)

"""Reports what a model has learned from the text it was pretrained on (pretrain_from_text's report.md)."""

import os
import shlex
from collections.abc import Sequence

from albert.cli import report_page
from albert.formats.model_card import table
from albert.inference.session import AnsweringSession, open_session
from albert.pretraining_data.features import SEGMENT_LENGTHS, pair_features
from albert.records.examples import FeatureSpec
from albert.records.manifests import Manifest
from albert.records.record_files import RecordFiles
from albert.storage import files
from albert.tokenization import FullTokenizer

_EXAMPLES = 10  # of masked words
_SEQUENCES = 400  # to search for them
_BLANK = "▁"  # how SentencePiece writes the blank before a word
_NEXT = """## What next

The model reads {length} tokens of a text, as in training, and up to {limit} with `--max_seq_length`.
Vectors, masked words, and a classifier from labelled texts (`text` and `label` columns):

    python -m albert.extract_features --model={model} --input_file=sentences.txt --output_file=vectors.npz
    echo "A text with a [MASK]." | python -m albert.fill_mask --model={model}
    python -m albert.run_classifier --init_checkpoint={model} --train_file=texts.csv --output_dir=classifier
"""


def coverage(records_file: str) -> str:
    """Returns a sentence about the share of the text that is in the records."""
    lost = Manifest.read(records_file).info["report"]["cut_tokens"]
    return f"The records hold {100 * (1 - lost):.1f} % of the text's tokens"


def write(directory: str, model: str, held_out: str, notes: Sequence[str]) -> str:
    """Publishes the report, and returns its path.

    Args:
      model: directory of run_pretraining.
      held_out: record file without masks.
      notes: sentences about the text and the training.
    """
    results = files.read_json_object(os.path.join(model, "eval_results.json"))
    session = open_session(model)
    segments = _segments(held_out, session.tokenizer)
    rows = []
    for name, key in (("masked tokens", "masked_lm"), ("sentence order", "sentence_order")):
        if f"{key}_accuracy" in results:
            accuracy, baseline = (results[f"{key}_accuracy{x}"] for x in ("", "_baseline"))
            rows.append((name, f"{100 * accuracy:.1f} %", f"{100 * baseline:.1f} %"))
    if "teacher_similarity" in results:
        rows.append(("similarity to the teacher", f"{results['teacher_similarity']:.3f}", "0"))
    return report_page.publish(directory, "Model pretrained on your text", [
        "".join(f"* {note}.\n" for note in notes),
        table(("on held-out text", "model", "always the most frequent answer"), rows),
        "## Learning curve\n",
        report_page.curve(model, "masked_lm_accuracy"),
        "## Masked words\n", _masked_words(session, segments),
        _NEXT.format(model=shlex.quote(model), length=session.max_seq_length,
                     limit=session.source.config.max_position_embeddings),
    ])


def _segments(held_out: str, tokenizer: FullTokenizer) -> list[list[str]]:
    """Returns the tokens of the first segments of held-out records."""
    source = RecordFiles([held_out])
    spec = FeatureSpec(pair_features(source.length_of("input_ids")))
    rows = source.read_block(0, spec, tokenizer.vocab_size)
    counts = rows[SEGMENT_LENGTHS][:, 0]
    return [
        tokenizer.convert_ids_to_tokens([int(i) for i in ids[1 : 1 + count]])
        for ids, count in zip(rows["input_ids"][:_SEQUENCES], counts[:_SEQUENCES], strict=True)
    ]


def _as_text(tokens: list[str], is_spm: bool) -> str:
    return "".join(tokens).replace(_BLANK, " ").strip() if is_spm else " ".join(tokens).replace(" ##", "")


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
            text = _as_text(masked, session.tokenizer.is_spm)
            # A segment that begins within a word has more tokens as a text.
            length = len(session.tokenizer.encode_text(_as_text(tokens, session.tokenizer.is_spm)))
            if length <= session.max_seq_length - 2:
                questions.append((text, tokens[i].strip(_BLANK)))
    if not questions:
        return "Too few held-out sentences.\n"
    answers = session.fill_mask([text for text, _ in questions], top_k=3)
    return table(("held-out text", "word", "predictions"), [
        (text, word, ", ".join(
            f"`{one['piece'].strip(_BLANK) or _BLANK}` {one['probability']:.2f}" for one in masks[0]
        ))
        for (text, word), masks in zip(questions, answers, strict=True)
    ])

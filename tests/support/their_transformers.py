"""The transformers and torch side of comparisons, for a process without TensorFlow (see apart.py)."""

import sys

import numpy as np

NAMES = {
    "input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids",
}


def outputs(kind: str, folder: str, inputs: dict, labels: dict) -> dict[str, np.ndarray]:
    """Returns the outputs of their class, loaded from a directory as a user would."""
    import torch
    import transformers

    assert "tensorflow" not in sys.modules
    model, report = getattr(transformers, kind).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    tensors = {NAMES[k]: torch.tensor(np.asarray(v, np.int64)) for k, v in inputs.items()}
    tensors |= {k: torch.tensor(v) for k, v in labels.items()}
    with torch.no_grad():
        return {k: v.numpy() for k, v in model.eval()(**tensors).items() if hasattr(v, "numpy")}


def save(kind: str, sizes: dict, folder: str) -> None:
    """Writes one of their models with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    getattr(transformers, kind)(transformers.AlbertConfig(**sizes)).save_pretrained(folder)


def tokenize(folder: str, *calls: tuple, **options) -> list[dict[str, list[int]]]:
    """Returns their tokenizer's output for each tuple of texts."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return [dict(tokenizer(*call, **options)) for call in calls]


def encodings(folder: str, calls: list[tuple[tuple, dict]]) -> list[dict[str, list]]:
    """Returns what their tokenizer gives for each call, with the numbers of words and texts."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return [with_numbers(tokenizer(*texts, **options)) for texts, options in calls]


def with_numbers(encoding) -> dict[str, list]:
    """Returns an encoding's values by their names, with the numbers of each token's word and text."""
    values = {NAMES.get(name, name): value for name, value in dict(encoding).items()}
    rows = values["input_ids"]
    count = len(rows) if isinstance(rows[0], list) else 1
    return values | {
        "word_ids": [encoding.word_ids(i) for i in range(count)],
        "sequence_ids": [encoding.sequence_ids(i) for i in range(count)],
    }


def special_tokens(folder: str) -> dict[str, str]:
    """Returns their special tokens by their names."""
    import transformers

    return dict(transformers.AutoTokenizer.from_pretrained(folder).special_tokens_map)


def add_tokens(folder: str, tokens: list[str], target: str) -> None:
    """Writes a tokenizer with these tokens added."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(tokens)
    tokenizer.save_pretrained(target)


def encode(folder: str, texts: list[str]) -> list[list[int]]:
    """Returns the ids of each text, without special tokens around it."""
    made = tokenize(folder, *((text,) for text in texts), add_special_tokens=False)
    return [row["input_ids"] for row in made]


def pseudo_log_likelihoods(folder: str, rows: list[list[int]], mask_id: int) -> list[float]:
    """Returns their masked-LM's values for sentences, given as ids with [CLS] and [SEP]."""
    import torch
    import transformers

    model = transformers.AlbertForMaskedLM.from_pretrained(folder).eval()
    found = []
    for ids in rows:
        total = 0.0
        for place in range(1, len(ids) - 1):
            row = torch.tensor([ids])
            row[0, place] = mask_id
            with torch.no_grad():
                logits = model(row).logits[0, place]
            total += torch.log_softmax(logits.double(), -1)[ids[place]].item()
        found.append(total)
    return found

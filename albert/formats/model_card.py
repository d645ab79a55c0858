"""The model card, README.md, of every directory with a model."""

import contextlib
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albert import __version__
from albert.config import AlbertConfig
from albert.formats import checkpoints, model_classes, run_states
from albert.formats.model_classes import MODEL_CLASSES, ModelClass
from albert.storage import files, filesystem
from albert.tokenization import FullTokenizer

if TYPE_CHECKING:
    from albert.formats.weights import Weights

log = logging.getLogger("albert")

NAME = "README.md"
_BEGINNING = "---\ntags:\n- albert\n---\n\n"

_ARCHITECTURE = """\
ALBERT ([arXiv 1909.11942](https://arxiv.org/abs/1909.11942)): a transformer encoder whose layers \
share parameters, with a factorised embedding.

"""
_LIMITATIONS = """\
- It has the errors and biases of its training text: check its outputs for your use
  before you rely on them.
- Texts of more than {max_length} tokens must be truncated or split.
- {case}
- Outputs of a pretrained model need fine-tuning: `pooled_output` was trained to
  distinguish ordered segments from swapped ones, not for semantic similarity.
"""
_USAGE = """
import albert

tokenizer = albert.AlbertTokenizer.from_pretrained("{name}")
model = albert.{architecture}.from_pretrained("{name}")
{inputs}
outputs = model(inputs)
print(outputs["{output}"])
"""
_USAGE_OF_IDS = """
import albert

model = albert.{architecture}.from_pretrained("{name}")  # takes ids: it has no tokenizer
"""
_CITATION = """\
```bibtex
@inproceedings{lan2020albert,
  title = {{ALBERT}: A Lite {BERT} for Self-supervised Learning of Language Representations},
  author = {Lan, Zhenzhong and Chen, Mingda and Goodman, Sebastian and Gimpel, Kevin and
            Sharma, Piyush and Soricut, Radu},
  booktitle = {International Conference on Learning Representations},
  year = {2020},
  url = {https://arxiv.org/abs/1909.11942}
}
```
"""


@contextlib.contextmanager
def publish_model(path: str, *last: str) -> Iterator[str]:
    """Like `files.publish_dir`, but keeps a README.md that the user wrote."""
    with files.publish_dir(path, *last) as scratch:
        yield scratch
        if _is_of_the_user(os.path.join(path, NAME)):
            os.unlink(os.path.join(scratch, NAME))


def _is_of_the_user(path: str) -> bool:
    """Whether a path exists and does not begin like a card."""
    if os.path.isdir(path) or not filesystem.exists(path):
        return os.path.isdir(path)
    with filesystem.open_read(path) as stream:
        return stream.read(len(_BEGINNING)) != _BEGINNING.encode()


def write(
    path: str,
    config: AlbertConfig,
    *,
    title: str,
    summary: str,
    usage: str = "",
    parameters: int | None = None,
    tokenizer: FullTokenizer | None = None,
    label_names: Sequence[str] | None = None,
    run_state: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
) -> str:
    """Publishes a card in Markdown, as a file or as a directory's README.md; returns its path.

    Args:
      usage: Python code that uses the model.
      label_names: of a classifier's outputs, in order.
      run_state: the JSON next to the checkpoint; empty for one of the original toolkit, None for
        a model that no run saved.
      results: evaluation results, {name: value}.
    """
    path = os.path.join(path, NAME) if os.path.isdir(path) else path
    if _is_of_the_user(path):
        log.warning("no model card written: %s is not one of this toolkit, and stays", path)
        return path
    architecture = config.to_dict() | ({} if parameters is None else {"parameters": parameters})
    architecture = {
        name.removeprefix("num_").replace("_", " "): value for name, value in architecture.items()
    }
    # As JSON, which escapes line feeds in names.
    labels = json.dumps(list(label_names or ()), ensure_ascii=False)
    sections = {
        "Use": f"```python\n{usage.strip()}\n```\n" if usage else "",
        "Architecture": _ARCHITECTURE + _table(architecture),
        "Tokenizer": _tokenizer(tokenizer) if tokenizer else "",
        "Labels": f"Of the outputs, in order:\n\n```json\n{labels}\n```\n" if label_names else "",
        "Origin": _origin(run_state),
        "Evaluation": _table(results) if results
        else "No evaluation of this checkpoint was recorded.\n",
        "Limitations": _LIMITATIONS.format(
            max_length=config.max_position_embeddings, case=_case(tokenizer)
        ),
        "Citation": _CITATION,
    }
    body = "\n".join(f"## {name}\n\n{text}" for name, text in sections.items() if text)
    with files.atomic_write(path) as stream:
        stream.write(f"{_BEGINNING}# {title}\n\n{summary.strip()}\n\n{body}")
    return path


def of_weights(
    path: str,
    weights: "Weights",
    config: AlbertConfig,
    *,
    name: str | None = None,
    tokenizer: FullTokenizer | None = None,
    **parts: Any,
) -> str:
    """Publishes the card of a model and returns its path.

    Args:
      path: the file, or the directory of its README.md.
      weights: the model's, with the run's state next to them.
      name: the directory's name in the usage; by default its actual name.
      parts: arguments of `write`, instead of those of the model's class.
    """
    run_state = run_states.read_run_state(weights.origin)
    shapes = (shape for n, shape in weights.shapes.items() if not checkpoints.is_slot(n))
    name = name or os.path.basename(os.path.abspath(path))
    known = {
        "parameters": sum(map(math.prod, shapes)),
        "tokenizer": tokenizer,
        "label_names": run_states.metadata_of(run_state).label_names,
        "run_state": run_state,
        "results": run_states.results_beside(weights.origin, run_state.get("step")),
        **of_class(run_state.get("architecture", "AlbertModel"), name, bool(tokenizer)),
    }
    return write(path, config, **known | parts)


def of_model(
    path: str, model: Any, tokenizer: FullTokenizer | None, name: str, **parts: Any
) -> str:
    """Publishes the card of a Keras model that is saved at `path` as `name`; returns its path."""
    known = {
        "parameters": model.count_params(), "tokenizer": tokenizer,
        "label_names": model.metadata.label_names,
        **of_class(model.metadata.architecture, name, tokenizer is not None),
    }
    return write(path, model.config, **known | parts)


def input_lines(kind: ModelClass, options: str = ', return_tensors="np", padding=True') -> str:
    """Returns the code that makes a class's `inputs`; `options` follow the texts."""
    lines = f"inputs = tokenizer({kind.example}{options})"
    if kind.task == model_classes.CHOICE:
        lines += "\ninputs = {name: rows[None] for name, rows in inputs.items()}  # one question"
    return lines


def of_class(architecture: str, name: str, has_tokenizer: bool = True) -> dict[str, str]:
    """Returns title, summary and usage for a model of a class of `albert`."""
    kind = MODEL_CLASSES.get(architecture, model_classes.ENCODER)
    usage = _USAGE if has_tokenizer else _USAGE_OF_IDS
    return {
        "title": f"{kind.name} ({name})",
        "summary": f"An ALBERT that gives {kind.gives}.",
        "usage": usage.format(
            architecture=kind.name, name=name, output=kind.outputs[0], inputs=input_lines(kind)
        ),
    }


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _table(values: Mapping[str, Any]) -> str:
    rows = []
    for name, value in sorted(values.items()):
        if isinstance(value, int | float):
            value = f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        rows.append([str(cell).replace("|", "\\|") for cell in (name, value)])
    return table(("", ""), rows)


def _tokenizer(tokenizer: FullTokenizer) -> str:
    kind = "SentencePiece" if tokenizer.is_spm else "WordPiece"
    case = "lower-cased" if tokenizer.do_lower_case else "cased"
    return (
        f"{kind}, {tokenizer.vocab_size:,} tokens, {case} text: "
        f"`{os.path.basename(tokenizer.path)}` (SHA-256 {files.sha256(tokenizer.path)}).\n"
    )


def _case(tokenizer: FullTokenizer | None) -> str:
    if tokenizer is None:
        return "Use the tokenizer with which it was trained."
    keeps = tokenizer.settings.keep_accents if tokenizer.is_spm else not tokenizer.do_lower_case
    removed = ["upper case"] * tokenizer.do_lower_case + ["accents"] * (not keeps)
    return f"Preprocessing removes {' and '.join(removed) or 'control characters'} from texts."


def _origin(run_state: Mapping[str, Any] | None) -> str:
    if run_state == {}:
        return ("A checkpoint without a record of its training, as written by the original toolkit: "
                "data and settings are unknown.\n")
    if not run_state or "task" not in run_state:
        return "Saved by a Python program, or converted; data and settings are unknown.\n"
    flags = {k: v for k, v in run_state.get("flags", {}).items() if v not in (None, False, "")}
    flags.pop("labels", None)  # of the data; the card lists them elsewhere
    listing = "".join(f"--{name}={value}\n" for name, value in sorted(flags.items()))
    step, task, version = (run_state.get(k, "unknown") for k in ("step", "task", "version"))
    return (
        f"Step {step} of the task `{task}`, trained with version {version} of this toolkit, "
        f"exported with version {__version__}; data and settings:\n\n```\n{listing}```\n"
    )

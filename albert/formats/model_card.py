"""The model card, README.md, of every directory with a model."""

import contextlib
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albert.config import AlbertConfig
from albert.formats import checkpoints, model_classes
from albert.formats.metadata import Metadata, metadata_at, read_run_state
from albert.storage import files

if TYPE_CHECKING:
    from albert.formats.weights import Weights

log = logging.getLogger("albert")

NAME = "README.md"
_BEGINNING = "---\ntags:\n- albert\n"
# Of Hugging Face's hub, and what a session is asked, by our tasks; the other classes fill masks.
_PIPELINES = {
    "AlbertModel": ("feature-extraction", 'embed(["A text."])'),
    model_classes.CLASSIFICATION: ("text-classification", 'classify(["A text."])'),
    model_classes.TOKENS: ("token-classification", 'tag(["A text."])'),
    model_classes.QUESTIONS: ("question-answering", 'answer([("A question?", "A text.")])'),
    model_classes.CHOICE: ("multiple-choice", 'choose([("A text.", "A question?", "1", "2")])'),
}
# The flags of a run that a card shows: all of them have an effect.
_FLAGS = ("init_checkpoint", "data_dir", "train_file", "input_file", "max_seq_length", "train_batch_size",
          "learning_rate", "seed")


@contextlib.contextmanager
def publish_model(path: str, *last: str) -> Iterator[str]:
    """Like `files.publish_dir`, but keeps a README.md that the user wrote."""
    with files.publish_dir(path, *last) as scratch:
        yield scratch
        if _is_of_the_user(os.path.join(path, NAME)):
            os.unlink(os.path.join(scratch, NAME))


def _is_of_the_user(path: str) -> bool:
    """Whether a path exists and does not begin like a card."""
    if not os.path.isfile(path):
        return os.path.exists(path)
    with open(path, "rb") as stream:
        return stream.read(len(_BEGINNING)) != _BEGINNING.encode()


def filled(template: str, **values: Any) -> str:
    """Returns the text of a file in `cards`, with its fields filled."""
    with open(os.path.join(os.path.dirname(__file__), "cards", template), encoding="utf-8") as stream:
        return stream.read().format(**values)


def write(
    path: str, config: AlbertConfig, metadata: Metadata, *, parameters: int, name: str | None = None,
    usage: str | None = None, note: str = "", has_tokenizer: bool = False,
    run_state: Mapping[str, Any] = {},
) -> None:
    """Publishes a card in Markdown, as a file or as a directory's README.md.

    Args:
      name: of the model; by default that of the directory.
      usage: Python code that uses it; by default a session's.
      note: one more sentence of the summary.
      run_state: the JSON next to the checkpoint, if a run saved it.
    """
    path = os.path.join(path, NAME) if os.path.isdir(path) else path
    if _is_of_the_user(path):
        log.warning("no model card written: %s is not one of this toolkit, and stays", path)
        return
    name = name or os.path.basename(os.path.dirname(os.path.abspath(path)))
    kind = model_classes.MODEL_CLASSES.get(metadata.architecture or "", model_classes.ENCODER)
    pipeline, call = _PIPELINES.get(kind.task or kind.name, ("fill-mask", 'fill_mask(["A [MASK]."])'))
    if metadata.num_texts == 2:
        call = call.replace('(["A text."])', '([("A text.", "Another one.")])')
    usage = usage or (
        f'import albert\n\nsession = albert.open_session("{name}")\nprint(session.{call})' if has_tokenizer
        else f'import albert\n\nmodel = albert.{kind.name}.from_pretrained("{name}")  # takes ids'
    )
    flags, results, labels = run_state.get("flags", {}), run_state.get("results"), metadata.label_names
    shown = {f"--{key}": str(flags[key]) for key in _FLAGS if flags.get(key) not in (None, "")}
    start = str(flags.get("init_checkpoint") or "")
    is_public = start.count("/") == 1 and not os.path.exists(start)
    sizes = config.to_dict() | {"parameters": parameters}
    with files.atomic_write(path) as stream:
        stream.write(_BEGINNING + filled(
            "card.md", pipeline=pipeline, base=f"base_model: {start}\n" if is_public else "", title=name,
            summary=f"{kind.name}: an ALBERT that gives {kind.gives}. {note}".strip(), usage=usage.strip(),
            architecture=_table({key.removeprefix("num_").replace("_", " "): x for key, x in sizes.items()}),
            # JSON escapes line feeds.
            labels=f"\nLabels, in order: `{json.dumps(labels, ensure_ascii=False)}`\n" if labels else "",
            origin=f"Step {run_state.get('step')}, version {run_state.get('version')} of albert:\n\n"
                   f"{_table(shown)}" if shown else "Data and settings are not recorded.\n",
            results=_table(results) if results else "No evaluation of this checkpoint was recorded.\n",
            max_length=config.max_position_embeddings,
        ))


def of_weights(path: str, weights: "Weights", config: AlbertConfig, **parts: Any) -> None:
    """Publishes the card of a model whose run state, if it has one, is next to its weights.

    Args:
      path: the file, or the directory of its README.md.
      parts: arguments of `write`.
    """
    run_state = read_run_state(weights.origin)
    shapes = (shape for n, shape in weights.shapes.items() if not checkpoints.is_slot(n))
    known = {"metadata": metadata_at(weights.origin), "run_state": run_state,
             "parameters": sum(map(math.prod, shapes))}
    write(path, config, **known | parts)


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table; a | in a cell is text."""
    lines = [header, ["---"] * len(header), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _table(values: Mapping[str, Any]) -> str:
    rows = []
    for name, value in sorted(values.items()):
        if isinstance(value, int | float):
            value = f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
        rows.append((name, value))
    return table(("", ""), rows)

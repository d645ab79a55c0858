"""The model card, README.md, of every directory with a model."""

import contextlib
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albert.config import AlbertConfig
from albert.formats import checkpoints, model_classes, run_states
from albert.formats.model_classes import ModelClass
from albert.formats.model_metadata import Metadata
from albert.storage import files, filesystem
from albert.tokenization import FullTokenizer

if TYPE_CHECKING:
    from albert.formats.weights import Weights

log = logging.getLogger("albert")

NAME = "README.md"
_BEGINNING = "---\ntags:\n- albert\n"
# Of Hugging Face's hub, by our tasks; and what a session is asked.
_PIPELINES = {
    model_classes.CLASSIFICATION: ("text-classification", 'classify(["A text."])'),
    model_classes.TOKENS: ("token-classification", 'tag(["A text."])'),
    model_classes.QUESTIONS: ("question-answering", 'answer([("A question?", "A text.")])'),
    model_classes.CHOICE: ("multiple-choice", 'choose([("A text.", "A question?", {options})])'),
}


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


def filled(template: str, **values: Any) -> str:
    """Returns the text of a file in `cards`, with its fields filled."""
    with open(os.path.join(os.path.dirname(__file__), "cards", template), encoding="utf-8") as stream:
        return stream.read().format(**values)


def write(
    path: str, config: AlbertConfig, metadata: Metadata, *, name: str | None = None,
    usage: str | None = None, note: str = "", parameters: int | None = None,
    tokenizer: FullTokenizer | None = None, run_state: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
) -> str:
    """Publishes a card in Markdown, as a file or as a directory's README.md; returns its path.

    Args:
      name: of the model; by default that of the directory.
      usage: Python code that uses it; by default a session's.
      note: one more sentence of the summary.
      run_state: the JSON next to the checkpoint, if a run saved it.
      results: evaluation results, {name: value}.
    """
    path = os.path.join(path, NAME) if os.path.isdir(path) else path
    if _is_of_the_user(path):
        log.warning("no model card written: %s is not one of this toolkit, and stays", path)
        return path
    name = name or os.path.basename(os.path.dirname(os.path.abspath(path)))
    kind = model_classes.MODEL_CLASSES.get(metadata.architecture or "", model_classes.ENCODER)
    sizes = config.to_dict() | ({} if parameters is None else {"parameters": parameters})
    start = (run_state or {}).get("flags", {}).get("init_checkpoint") or ""
    is_public = start.count("/") == 1 and not os.path.exists(start)
    labels = json.dumps(list(metadata.label_names or ()), ensure_ascii=False)  # escapes line feeds
    pipeline, call = _pipeline(kind, metadata)
    usage = usage or (
        f'import albert\n\nsession = albert.open_session("{name}")\nprint(session.{call})' if tokenizer
        else f'import albert\n\nmodel = albert.{kind.name}.from_pretrained("{name}")  # takes ids'
    )
    content = filled(
        "card.md", pipeline=pipeline, base=f"base_model: {start}\n" if is_public else "",
        title=name, summary=f"{kind.name}: an ALBERT that gives {kind.gives}. {note}".strip(),
        usage=f"```python\n{usage.strip()}\n```",
        architecture=_table({key.removeprefix("num_").replace("_", " "): x for key, x in sizes.items()}),
        labels=f"\nLabels, in order: `{labels}`\n" if metadata.label_names else "",
        origin=_origin(run_state), max_length=config.max_position_embeddings,
        results=_table(results) if results else "No evaluation of this checkpoint was recorded.\n",
    )
    with files.atomic_write(path) as stream:
        stream.write(_BEGINNING + content)
    return path


def of_weights(path: str, weights: "Weights", config: AlbertConfig, **parts: Any) -> str:
    """Publishes the card of a model whose run state, if it has one, is next to its weights.

    Args:
      path: the file, or the directory of its README.md.
      parts: arguments of `write`.
    """
    run_state = run_states.read_run_state(weights.origin)
    shapes = (shape for n, shape in weights.shapes.items() if not checkpoints.is_slot(n))
    known = {
        "metadata": run_states.metadata_of(run_state),
        "parameters": sum(map(math.prod, shapes)),
        "run_state": run_state,
        "results": run_state.get("results"),
    }
    return write(path, config, **known | parts)


def _pipeline(kind: ModelClass, metadata: Metadata) -> tuple[str, str]:
    """Returns the hub's name of a class's task, and the call of a session that answers."""
    options = ", ".join(f'"{n}"' for n in range(1, 1 + int(metadata.settings.get("num_choices", 4))))
    if kind.task:
        pipeline, call = _PIPELINES[kind.task]
        return pipeline, call.format(options=options)
    if kind is model_classes.ENCODER:
        return "feature-extraction", 'embed(["A text."])'
    return "fill-mask", 'fill_mask(["A [MASK]."])'


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


def _origin(run_state: Mapping[str, Any] | None) -> str:
    if not run_state or "flags" not in run_state:
        return "Data and settings are not recorded.\n"
    flags = {k: v for k, v in run_state.get("flags", {}).items() if v not in (None, False, "")}
    flags.pop("labels", None)  # of the data; the card lists them elsewhere
    listing = "".join(f"--{name}={value}\n" for name, value in sorted(flags.items()))
    step, version = (run_state.get(k, "unknown") for k in ("step", "version"))
    task = run_states.metadata_of(run_state).task
    return f"Step {step} of the task `{task}`, version {version} of this toolkit:\n\n```\n{listing}```\n"

"""ALBERT (A Lite BERT, arXiv 1909.11942) for TensorFlow 2 and Keras 3."""

import importlib
from typing import Any

__version__ = "0.3.0.dev0"

# Loaded when asked for: `import albert` alone imports neither Keras nor TensorFlow.
_WHERE = {
    "AlbertConfig": "config",
    "AlbertForBeamQuestionAnswering": "modeling",
    "AlbertForMaskedLM": "modeling",
    "AlbertForMultipleChoice": "modeling",
    "AlbertForPreTraining": "modeling",
    "AlbertForQuestionAnswering": "modeling",
    "AlbertForSequenceClassification": "modeling",
    "AlbertForTokenClassification": "modeling",
    "AlbertModel": "modeling",
    "AlbertTokenizer": "albert_tokenizer",
    "AnsweringSession": "inference.answering_session",
    "HubLayer": "export.hub_layer",
    "compiled": "inference.compiled_call",
    "from_pretrained": "modeling",
    "open_session": "inference.answering_session",
}
_MODULES = ("config", "errors", "modeling", "optimization", "tokenization")
__all__ = sorted(_WHERE)


def __dir__() -> list[str]:
    return [*__all__, *_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"albert.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'albert' has no attribute {name!r}")
    return getattr(importlib.import_module(f"albert.{_WHERE[name]}"), name)

"""ALBERT (A Lite BERT, arXiv 1909.11942) for TensorFlow 2 and Keras 3.

What people use first:

    model = albert.from_pretrained("albert/albert-base-v2")  # downloaded; or a path, or "small_en"
    tokenizer = albert.AlbertTokenizer.from_pretrained("albert/albert-base-v2")
    outputs = model(**tokenizer(["A text.", "Another."], padding=True))

    session = albert.open_session("my_classifier")           # texts in, answers out
    session.classify("A text.")

    AlbertConfig, AlbertModel                                 the architecture, and the encoder
    AlbertForMaskedLM, AlbertForPreTraining                   pretraining
    AlbertForSequenceClassification                           texts and pairs; regression
    AlbertForTokenClassification                              labels of words
    AlbertForQuestionAnswering, ...BeamQuestionAnswering      SQuAD 1.1, and 2.0
    AlbertForMultipleChoice                                   RACE
    compiled                                                  a model's call, compiled
    HubLayer                                                  a TF-Hub module as a Keras layer

They are Keras 3 models: `fit`, `.keras` files and `export` work as with any. The commands, as
`python -m albert.run_classifier`, each have `--help`.
"""

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

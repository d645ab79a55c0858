"""ALBERT (A Lite BERT, arXiv 1909.11942) for TensorFlow 2 and Keras 3.

Get answers from texts:

    session = albert.open_session("my_classifier")
    session.classify("A text.")

Compute with a model, which is a Keras 3 model:

    model = albert.from_pretrained("albert/albert-base-v2")  # a download; or a path, or "small_en"
    tokenizer = albert.AlbertTokenizer.from_pretrained("albert/albert-base-v2")
    outputs = model(**tokenizer(["A text.", "Another one."], padding=True))

    AlbertConfig, AlbertModel                              the architecture, the encoder
    AlbertForMaskedLM, AlbertForPreTraining                pretraining
    AlbertForSequenceClassification                        classification and regression of texts
    AlbertForTokenClassification                           labels of words
    AlbertForQuestionAnswering, ...BeamQuestionAnswering   SQuAD 1.1, SQuAD 2.0
    AlbertForMultipleChoice                                RACE

Each command, such as `python -m albert.run_classifier`, has `--help`. `help(albert.open_session)`
has an example, and so has the help of each of the main names.
"""

import glob
import importlib
import os
import signal
import sys
import warnings
from typing import Any

__version__ = "0.4.0"

# The distribution `albert` is another project's, with the same import name. Installed beside this one,
# it has overwritten some of these files.
if glob.glob(os.path.join(os.path.dirname(os.path.dirname(__file__)), "albert-*.dist-info")):
    warnings.warn("pip has installed another project's package `albert` over this one: `pip uninstall "
                  "albert albert-keras`, then install albert-keras again", stacklevel=2)

# Loaded on first use: `import albert` alone imports neither Keras nor TensorFlow.
_MODULE_OF = {
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
    "AlbertTokenizerFast": "albert_tokenizer",
    "AnsweringSession": "inference.session",
    "from_pretrained": "modeling",
    "open_session": "inference.session",
    "pretraining_dataset": "pretraining_data.dataset",
}
_MODULES = ("config", "errors", "modeling", "optimization", "tokenization")
__all__ = sorted(_MODULE_OF)


def end_at_interrupt(*_: Any) -> None:
    """Ends a command that is still importing its modules, as `cli.flags.run_command` does later."""
    os.write(2, b"stopped by SIGINT\n")
    os._exit(130)


def is_program() -> bool:
    """Whether this process is `python -m albert.NAME` or `albert-NAME`, not one that imports albert."""
    folder, program = os.path.split((sys.argv or [""])[0])
    return program == "-m" or program.startswith("albert-") or folder == os.path.dirname(__file__)


# A library import never changes a handler.
if is_program():
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_interrupt)


def __dir__() -> list[str]:
    return [*__all__, *_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"albert.{name}")
    # transformers has a class for each engine.
    name = name.removeprefix("TF").removeprefix("Flax") if "Albert" in name else name
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'albert' has no attribute {name!r}")
    return getattr(importlib.import_module(f"albert.{_MODULE_OF[name]}"), name)

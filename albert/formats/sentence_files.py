"""The files by which sentence-transformers turns an encoder's states into an embedding.

`modules.json` lists what follows the encoder: a `Pooling`, whose `config.json` names its mode, and
often a `Normalize`. `sentence_bert_config.json` has the maximum length. Here, "mean+normalize" is a
mean of all states, scaled to the length 1.
"""

import os
from typing import Any

from albert.errors import DataError
from albert.storage import files

MODULES_FILE, LENGTH_FILE = "modules.json", "sentence_bert_config.json"
NAMES = (MODULES_FILE, LENGTH_FILE, "*_Pooling/config.json")  # on the hub
SUPPORTED = ("mean", "cls", "mean+normalize", "cls+normalize")
# Their keys for the modes, before version 6.
_KEY = "pooling_mode_{}_token"
_KEYS = {"cls": _KEY.format("cls"), "mean": _KEY.format("mean") + "s"}


def read(directory: str) -> dict[str, Any]:
    """Returns `pooling` and `max_seq_length`, where the files of a directory say them.

    Raises:
      DataError: a file is malformed.
    """
    found, path = {}, os.path.join(directory, MODULES_FILE)
    if not os.path.isfile(path):
        return found
    try:
        for module in files.read_json(path)[1:]:
            name = module["type"].rsplit(".", 1)[-1].lower()
            if name == "pooling":
                folder = os.path.basename(module["path"])
                name = _mode(files.read_json(os.path.join(directory, folder, "config.json")))
            found["pooling"] = "+".join(filter(None, (found.get("pooling"), name)))
        lengths = os.path.join(directory, LENGTH_FILE)
        if os.path.isfile(lengths) and (length := files.read_json(lengths).get("max_seq_length")):
            found["max_seq_length"] = int(length)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}, or a file that it names, is malformed: {error!r}") from error
    return found


def _mode(values: dict[str, Any]) -> str:
    if mode := values.get("pooling_mode"):
        return mode if isinstance(mode, str) else " and ".join(mode)
    modes = [key.split("_", 2)[2] for key, value in values.items() if value is True and "_mode_" in key]
    return " and ".join(mode.removesuffix("s").removesuffix("_token") for mode in modes)


def write(directory: str, pooling: str, max_seq_length: int, width: int) -> None:
    """Writes the files for one of the SUPPORTED poolings of an encoder of this width."""
    names = ["Transformer", "Pooling", "Normalize"][: 2 + pooling.endswith("normalize")]
    files.write_json(os.path.join(directory, MODULES_FILE), [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "",
         "type": f"sentence_transformers.models.{name}"} for i, name in enumerate(names)
    ])
    os.makedirs(os.path.join(directory, "1_Pooling"))
    modes = {key: pooling.split("+")[0] == mode for mode, key in _KEYS.items()}
    files.write_json(
        os.path.join(directory, "1_Pooling", "config.json"), {"word_embedding_dimension": width} | modes
    )
    files.write_json(
        os.path.join(directory, LENGTH_FILE), {"max_seq_length": max_seq_length, "do_lower_case": False}
    )

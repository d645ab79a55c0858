"""A pretrained directory with every file that may accompany its weights, and its module."""

import pathlib

import numpy as np
import sentencepiece
from helpers import SIZES, run_here, train_pieces, write_config, write_weights

from albert import export_to_tfhub
from albert.formats import checkpoints
from albert.storage import files


def write_source(folder: pathlib.Path) -> pathlib.Path:
    """Writes a released archive's files, a checkpoint with slots, and its training records."""
    folder.mkdir()
    text = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen jugs"] * 9
    path = train_pieces(folder / "30k-clean", text, 60)
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    changes = {"vocab_size": model.get_piece_size(), "num_hidden_layers": 1}
    write_config(folder, **changes)
    made = checkpoints.open_weights(write_weights(folder / "made", SIZES | changes))
    tensors = {name: made.read(name) for name in made.shapes}
    for path in folder.glob("made*"):
        path.unlink()
    slots = {f"{name}/adam_m": np.zeros_like(value) for name, value in tensors.items()}
    checkpoints.write(
        str(folder / "model.ckpt-best"), tensors | slots | {"global_step": np.int64(3)}
    )
    files.write_json(str(folder / "model.ckpt-best.json"), {
        "step": 3, "version": "0.1.0", "records_seen": 12, "metadata": {"task": "pretraining"},
        "flags": {"input_file": "text.tfrecord", "learning_rate": 0.01, "do_eval": False},
        "results": {"masked_lm_accuracy": 0.25},
    })
    return folder


def write_module(folder: pathlib.Path) -> None:
    source = write_source(folder / "albert")
    assert run_here(
        export_to_tfhub, f"--albert_directory={source}", f"--export_path={folder / 'module'}",
        "--nodo_lower_case",
    ) == 0

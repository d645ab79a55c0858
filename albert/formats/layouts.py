"""Detects the layout of a model at a path. No TensorFlow."""

import enum
import logging
import os

from albert.errors import CheckpointError
from albert.formats import checkpoint_files, checkpoints, hub, huggingface, model_hub
from albert.storage import cloud, shipped

log = logging.getLogger("albert")

CONFIG_FILE = "albert_config.json"


class Layout(enum.Enum):
    """How a model is laid out in files; the value describes the files."""

    HUGGING_FACE = "config.json with model.safetensors or pytorch_model.bin"
    ALBERT = f"{CONFIG_FILE} with model.ckpt*"  # a released archive, or a run's directory
    HUB_MODULE = "a TF-Hub module"
    CHECKPOINTS = "model.ckpt* alone"
    CHECKPOINT = "the prefix of a checkpoint, or one of its files"


def layout_of(path: str) -> Layout | None:
    """Returns how the model at a local path is laid out; None if there is none."""
    if not os.path.isdir(path):
        is_prefix = checkpoint_files.exists(checkpoint_files.prefix_of(path))
        return Layout.CHECKPOINT if is_prefix else None
    if huggingface.is_directory(path):
        return Layout.HUGGING_FACE
    if os.path.isfile(os.path.join(path, CONFIG_FILE)):
        return Layout.ALBERT
    if hub.is_directory(path):
        return Layout.HUB_MODULE
    return Layout.CHECKPOINTS if checkpoints.newest_or_best(path) else None


def locate(path: str, flag: str) -> tuple[str, Layout | None]:
    """Returns the local path of the model that a user's path means, and its layout.

    A path may be a remote address, the name of a built-in model or of one on the hub, or a
    directory that contains one model directory.

    Raises:
      CheckpointError: it is a packed model, or a directory holds two models.
    """
    path = cloud.local_copy(model_hub.local_path(shipped.path_of(path), flag), flag)
    layout = layout_of(path)
    if layout is None and os.path.isdir(path):
        below = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name[0] != "."]
        models = [folder for folder in below if os.path.isdir(folder) and layout_of(folder)]
        if len(models) == 1:
            log.info("%s: using the model in %s", path, models[0])
            path, layout = models[0], layout_of(models[0])
    if layout is Layout.CHECKPOINT:
        path = checkpoint_files.prefix_of(path)
    if layout is Layout.HUGGING_FACE and (checkpoint := checkpoints.newest_or_best(path)):
        raise CheckpointError(
            f"{flag}: {path} holds two models, {checkpoint} and Hugging Face's "
            f"{huggingface.find_weights(path)}: give the checkpoint's prefix, or move one elsewhere"
        )
    return path, layout


def absent(path: str, flag: str, layout: Layout | None) -> CheckpointError:
    """Returns the error for a path without a model and its configuration."""
    if os.path.isfile(path):
        return CheckpointError(f"{flag}: {path} is not a checkpoint")
    if not os.path.isdir(path):
        return CheckpointError(
            f"{flag}: no directory or checkpoint {path!r}. Built-in models: "
            f"{', '.join(shipped.names())}. To download a released one: albert/albert-base-v2"
        )
    if layout is Layout.CHECKPOINTS:
        return CheckpointError(f"{flag}: {path} has checkpoints, but no {CONFIG_FILE}")
    if os.path.isfile(os.path.join(path, huggingface.CONFIG_FILE)):
        return CheckpointError(
            f"{flag}: {path} has a {huggingface.CONFIG_FILE}, but none of "
            f"{', '.join(huggingface.WEIGHTS_FILES)}. Save a tf_model.h5 again with transformers: "
            "from_pretrained(FOLDER, from_tf=True), then save_pretrained(FOLDER)"
        )
    wanted = Layout.ALBERT, Layout.HUGGING_FACE, Layout.HUB_MODULE
    return CheckpointError(
        f"{flag}: {path} holds neither " + ", nor ".join(layout.value for layout in wanted)
    )

"""The flags of every command that trains: devices, how a step is computed, checkpoints, masks."""

from albert import engines
from albert.cli import flags
from albert.errors import FlagError

# The original reached TPUs over the network, by name.
_OLD_TPU_FLAGS = dict.fromkeys(("tpu_name", "tpu_zone", "gcp_project", "master")) | {"num_tpu_cores": 8}


def define_device_flags(values: flags.FlagValues) -> None:
    """Defines the original's accelerator flags, and how the step is compiled."""
    flags.define("enum", values, "engine", None,
                 "Engine to compute with; JAX also runs on TPUs. Default: the environment variable "
                 "KERAS_BACKEND, else TensorFlow if it is installed.", enum_values=list(engines.ENGINES))
    flags.define("enum", values, "distribution_strategy", None,
                 "Devices: one, all of this machine (default), or, with --engine=jax, of several machines.",
                 enum_values=["one_device", "mirrored", "multi_worker"])
    flags.define("integer", values, "num_gpus", None,
                 "Number of GPUs to use on each machine; 0: none; default: all.", lower_bound=0)
    flags.define("integer", values, "num_virtual_devices", 0,
                 "Split the CPU into this many devices, to try out training on several devices.",
                 lower_bound=0)
    flags.define("bool", values, "use_tpu", False, "Require the TPUs of this machine; needs JAX.")
    for name, default in _OLD_TPU_FLAGS.items():
        flags.define("integer" if default else "string", values, name, default, "No effect: run the "
                     "command on the TPU machine itself, with --use_tpu.",
                     **{"lower_bound": 1} if default else {})
    flags.define("bool", values, "use_xla", None,
                 "Compile the training step with XLA. Default: on GPUs, but not on CPUs, where it only "
                 "helps small models on sequences of one length; JAX always compiles.")
    flags.define("integer", values, "gradient_accumulation_steps", 1,
                 "Number of micro-batches into which each device splits its sequences, to save memory; "
                 "the result is the same.", lower_bound=1)
    flags.define("bool", values, "remat", False,
                 "Recompute each layer in the backward pass instead of keeping its activations.")
    flags.define("enum", values, "mixed_precision", "float32",
                 "Precision of the matrix products; weights stay float32.",
                 enum_values=["float32", "bfloat16", "float16"])


def define_run_flags(values: flags.FlagValues, *, save_checkpoints_steps: int) -> None:
    """Defines the flags that all training commands share."""
    flags.define("path", values, "output_dir", None,
                 "Directory for checkpoints and results. Required.", use="directory")
    flags.define("integer", values, "save_checkpoints_steps", save_checkpoints_steps,
                 "Steps between checkpoints.", lower_bound=1)
    flags.define("integer", values, "keep_checkpoint_max", 5,
                 "Number of newest checkpoints to keep, besides the best.", lower_bound=0)
    flags.define("integer", values, "iterations_per_loop", 1000,
                 "No effect: signals are handled after each step.", lower_bound=1)
    flags.define("integer", values, "log_steps", 100, "Steps between lines of metrics.", lower_bound=1)
    flags.define("integer", values, "seed", 12345, "Seed of all random numbers.",
                 lower_bound=0, upper_bound=flags.MAX_SEED)
    flags.define("bool", values, "pack_rows", True,
                 "Pack several short examples into a sequence, without attention between them; off for "
                 "SQuAD 1.1, where padding counts.")


# The flags of `define_masking_flags`.
MASKING_FLAGS = ("do_whole_word_mask", "favor_shorter_ngram", "ngram", "mask_token_share")


def define_masking_flags(values: flags.FlagValues) -> None:
    """Defines how masks are drawn; see `masking.MaskingSettings`."""
    from albert.pretraining_data.masking import MAX_NGRAM

    of_data = {"module_name": "albert.cli.corpus_flags"}  # for --help
    flags.define("bool", values, "do_whole_word_mask", True,
                 "Mask whole words instead of single tokens.", **of_data)
    flags.define("bool", values, "favor_shorter_ngram", True,
                 "Draw n-gram lengths with p(n) ~ 1/n; if false, reversed.", **of_data)
    flags.define("integer", values, "ngram", 3, "Maximum number of words masked together.",
                 lower_bound=1, upper_bound=MAX_NGRAM, **of_data)
    flags.define("float", values, "mask_token_share", 0.8,
                 "Fraction of the chosen tokens that become [MASK], while half of the others stay and "
                 "half become random; 1 did no worse for BERT-large (Wettig et al. 2023), and needs "
                 "held-out records with 1, too.", lower_bound=0, upper_bound=1, **of_data)


def check_device_flags(values: flags.FlagValues) -> None:
    """Refuses device flags that contradict each other; the devices themselves are checked later."""
    strategy = values.distribution_strategy
    if values.use_tpu and values.engine == "tensorflow":
        raise FlagError("--use_tpu needs --engine=jax: TensorFlow does not run on TPUs any more")
    if values.use_tpu and values.num_virtual_devices > 1:
        raise FlagError("--num_virtual_devices splits the CPU: leave it out with --use_tpu")
    if values.num_virtual_devices > 1 and strategy == "one_device":
        raise FlagError(f"--num_virtual_devices has no effect with {strategy}")
    if engines.choose(values) == "jax" and values.use_xla is False:
        raise FlagError("--nouse_xla has no effect: JAX always compiles. Leave it out, or use "
                        "--engine=tensorflow")

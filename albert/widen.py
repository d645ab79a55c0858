"""Makes a pretrained model wider, to pretrain it further.

  python -m albert.widen --model=small_en --factor=2 --output_dir=wide_start
  python -m albert.run_pretraining --init_checkpoint=wide_start \\
      --albert_config_file=wide_start/albert_config.json ...

The wider model computes what the given one does. Train it on at a small rate. Hidden
size, feed-forward size and the number of attention heads become --factor times as large; the
embedding size, the layers and the vocabulary stay. A layer takes the square of --factor as
long, and has room to learn more.
"""


from albert.cli import flags
from albert.storage import files


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "model", None,
                 "Directory of a pretrained model: ours, Hugging Face's or a TF-Hub module. "
                 "Required.", use="model")
    flags.define("integer", values, "factor", 2, "How many times as wide.", least=2, most=16)
    flags.define("integer", values, "seed", 12345,
                 "What shares the weights out among the copies of a unit.",
                 least=0, most=flags.MOST_SEED)
    flags.define("path", values, "output_dir", None, "Directory to write. Required.",
                 use="output")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "model", "output_dir")
    files.refuse_existing(values.output_dir, "output_dir")
    flags.start_engine()
    from albert import modeling
    from albert.formats import pretrained, width_transfer

    source = pretrained.open_path(values.model, "model")
    before = modeling.AlbertForPreTraining(source.config)
    pretrained.assign(before, source.weights())
    config = width_transfer.wider(source.config, values.factor)
    after = modeling.AlbertForPreTraining(config)
    weights = modeling.named_weights(after)
    widened = width_transfer.widen(
        {name: weight.numpy() for name, weight in modeling.named_weights(before).items()},
        {name: tuple(weight.shape) for name, weight in weights.items()}, values.seed,
    )
    for name, weight in weights.items():
        weight.assign(widened[name])
    pretrained.save(after, values.output_dir, source.tokenizer())
    flags.log.info(
        "%s: hidden size %d, was %d; %d attention heads", values.output_dir, config.hidden_size,
        source.config.hidden_size, config.num_attention_heads,
    )


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

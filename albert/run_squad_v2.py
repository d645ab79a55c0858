"""Fine-tunes ALBERT on SQuAD 2.0, where a question may have no answer, and predicts.

  python -m albert.run_squad_v2 --init_checkpoint=albert/albert-base-v2 --output_dir=out \\
      --train_file=train-v2.0.json --predict_file=dev-v2.0.json --do_train --do_predict \\
      --train_batch_size=48 --learning_rate=3e-5 --num_train_epochs=2

Like run_squad_v1, and also writes null_odds.json.
"""

from albert import run_squad
from albert.cli import flags


define_flags = run_squad.define_flags


def main(values: flags.FlagValues) -> None:
    values.version_2_with_negative = True
    run_squad.main(values)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

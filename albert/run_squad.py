"""Fine-tunes ALBERT on SQuAD 1.1, or with --version_2_with_negative on SQuAD 2.0, and predicts.

  python -m albert.run_squad --version_2_with_negative --albert_hub_module_handle=module \\
      --train_file=train-v2.0.json --predict_file=dev-v2.0.json --output_dir=out \\
      --do_train --do_predict

The same as run_squad_v2 with the flag, and as run_squad_v1 without it.
"""

from albert.cli import flags, question_answering
from albert.errors import FlagError


def define_flags(values: flags.FlagValues) -> None:
    flags.define("bool", values, "version_2_with_negative", False,
                 "Whether the data are SQuAD 2.0, where some questions have no answer.")
    question_answering.define_flags(values)
    question_answering.define_v1_flags(values)
    question_answering.define_v2_flags(values)


def main(values: flags.FlagValues) -> None:
    ineffective = flags.given_as_typed(values, *question_answering.V2_FLAGS)
    if ineffective and not values.version_2_with_negative:
        raise FlagError(f"{', '.join(ineffective)}: only with --version_2_with_negative")
    question_answering.run(values, values.version_2_with_negative)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

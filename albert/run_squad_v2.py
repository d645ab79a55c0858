"""Fine-tunes ALBERT on SQuAD 2.0, where a question may have no answer, and predicts.

  python -m albert.run_squad_v2 --albert_config_file=albert_base/albert_config.json \\
      --spm_model_file=albert_base/30k-clean.model --init_checkpoint=albert_base/model.ckpt-best \\
      --train_file=train-v2.0.json --predict_file=dev-v2.0.json --output_dir=out \\
      --do_train --do_predict --max_seq_length=384 --doc_stride=128 --train_batch_size=48 \\
      --learning_rate=3e-5 --num_train_epochs=2 --warmup_proportion=.1

If --predict_file has answers, every checkpoint is evaluated. The best one by f1
writes predictions.json, nbest_predictions.json and null_odds.json. Rerun the
command and it resumes from the newest checkpoint of --output_dir.
"""

from albert.cli import flags, question_answering


def define_flags(values: flags.FlagValues) -> None:
    """Defines the original's flags with its defaults, and a few new ones."""
    question_answering.define_flags(values)
    question_answering.define_v2_flags(values)


def main(values: flags.FlagValues) -> None:
    question_answering.run(values, with_negative=True)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

"""Fine-tunes ALBERT on SQuAD 1.1, and predicts the answers of any file in its layout.

  python -m albert.run_squad_v1 --init_checkpoint=albert/albert-base-v2 --output_dir=out \\
      --train_file=train-v1.1.json --predict_file=dev-v1.1.json --do_train --do_predict \\
      --train_batch_size=48 --learning_rate=5e-5 --num_train_epochs=2

If --predict_file has answers, every checkpoint is evaluated. The best one by f1
writes predictions.json and nbest_predictions.json. Rerun the command and it
resumes from the newest checkpoint of --output_dir.
"""

from albert.cli import flags
from albert.run_squad import define_flags, main


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

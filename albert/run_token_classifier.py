"""Fine-tunes ALBERT for token classification (named entities, parts of speech) on CoNLL files.

  python -m albert.run_token_classifier --data_dir=conll2003 --output_dir=out \\
      --init_checkpoint=albert/albert-base-v2 --do_train --do_eval --do_predict \\
      --max_seq_length=128 --learning_rate=3e-5 --train_step=2500 --warmup_step=250

--data_dir holds train.txt, dev.txt and test.txt: one word per line, with columns
separated by blanks or tabs (the word first, its label last), and an empty line after
each sentence. Precision, recall and F1 are for entire entities, as in conlleval; the
checkpoint with the best F1 is kept. With --scheme=none, labels belong to single words,
and accuracy decides. Rerun the command and it resumes from the newest checkpoint of
--output_dir.
"""

import logging
import os

from albert import finetune
from albert.cli import flags
from albert.cli.encoder import open_encoder
from albert.errors import DataError, FlagError
from albert.formats.metadata import metadata_at
from albert.tasks import words
from albert.tasks.fine_tuning_data import FineTuningData, warn_of_labels
from albert.training.metrics import log_results, write_results

log = logging.getLogger("albert")


def define_flags(values: flags.FlagValues) -> None:
    """Defines those flags of run_classifier that apply, and new ones."""
    flags.define("path", values, "data_dir", None,
                 "Folder with train.txt, dev.txt and test.txt. Required.", use="file")
    flags.define("enum", values, "scheme", "bio",
                 "How labels mark entities: bio: B- begins one and I- continues it; none: not at all.",
                 enum_values=words.SCHEMES)
    flags.define("string", values, "label_list", None,
                 "Labels in the order of their ids, separated by commas or blanks. Default: those of "
                 "train.txt, or those that the checkpoint was trained with.")
    finetune.define_encoder_flags(values)
    finetune.define_classifier_flags(values, "Dropout on the encoder's output.")


def main(values: flags.FlagValues) -> None:
    # === Settings and labels ===
    flags.require(values, "data_dir", "output_dir")
    settings, labels = finetune.settings_of(values), None
    if values.label_list:
        labels = flags.parse_labels(values.label_list, of_words=True)
        for label in labels:
            words.check_label(label, values.scheme, "--label_list")
    encoder = open_encoder(values, settings.max_seq_length)
    if labels is None and not settings.do_train:  # those that the checkpoint was trained with
        origin = finetune.weights_to_use(settings.checkpoint, settings.output_dir).origin
        labels = metadata_at(origin).label_names
        if not labels:
            raise FlagError(f"{origin} does not name its labels: pass --label_list")

    # === Sentences ===
    paths = {split: os.path.join(values.data_dir, f"{split}.txt") for split in settings.splits}
    sentences = {}
    for split, path in paths.items():
        found = sentences[split] = words.read_sentences(path, values.scheme, labels, split != "test")
        log.info("%s: %s sentences, %s words", path, f"{len(found):,}",
                 f"{sum(len(sentence.words) for sentence in found):,}")
        if labels is None:  # train is the first
            labels = words.collect_labels(found, values.scheme)
            if len(labels) < 2:
                raise DataError(f"{path}: nothing to learn: {labels[0]} is its only label")
            log.info("labels: %s", " ".join(labels))
    if "train" in sentences:
        occurring = (label for sentence in sentences["train"] for label in sentence.labels)
        warn_of_labels(paths["train"], occurring, labels)

    # === Run ===
    data = FineTuningData(words.WordLabelTask.name, sentences, labels)
    task = words.WordLabelTask(
        settings.max_seq_length, labels, values.scheme == "bio", values.classifier_dropout,
        test_file=paths.get("test", ""),
    )
    result = finetune.run(values, settings, encoder, data, task)
    if result and settings.do_predict and all(one.labels for one in sentences["test"]):
        results = result.evaluations["test"].results
        log_results(results, "Predict results")
        write_results(settings.output_dir, results, "predict_results")


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

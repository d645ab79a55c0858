"""Fine-tunes ALBERT to label words: named entities, word classes, in CoNLL files.

  python -m albert.run_token_classifier --data_dir=conll2003 --output_dir=out \\
      --init_checkpoint=albert_base/model.ckpt-best \\
      --albert_config_file=albert_base/albert_config.json \\
      --spm_model_file=albert_base/30k-clean.model --do_train --do_eval --do_predict \\
      --max_seq_length=128 --learning_rate=3e-5 --train_step=2500 --warmup_step=250 \\
      --save_checkpoints_steps=250

--data_dir holds train.txt, dev.txt and test.txt: a word a line with its columns
separated by blanks or tabs, the first the word, the last its label, and an empty line
after each sentence. Precision, recall and F1 are of whole entities, as conlleval
counts them; the checkpoint of the best F1 is kept. With --scheme=none the labels are
of words, and their accuracy is what counts. The same command again goes on from
the newest checkpoint of --output_dir.
"""

import logging
import os

from albert.cli import course, fine_tuning, flags
from albert.errors import DataError, FlagError
from albert.formats import known_tasks, sidecars
from albert.tasks import conll

log = logging.getLogger("albert")


def define_flags(values: flags.FlagValues) -> None:
    """The flags of run_classifier where they apply."""
    flags.define("path", values, "data_dir", None,
                 "Folder with train.txt, dev.txt and test.txt. Required.", use="file")
    flags.define("enum", values, "scheme", "bio",
                 "How labels mark entities: B- begins one and I- continues it (bio); B- only "
                 "begins one that touches another (iob1, as in the files of CoNLL-2003); E- ends "
                 "one and S- is a whole one too (iobes); labels are not of entities (none).",
                 enum_values=conll.SCHEMES)
    flags.define("string", values, "label_list", None,
                 "Labels in the order of their ids, separated by commas or by blanks; by default "
                 "those of train.txt, or those that the checkpoint was trained with.")
    fine_tuning.define_encoder_flags(values)
    flags.define("float", values, "classifier_dropout", 0.1, "Dropout on the encoder's output.",
                 least=0, below=1)
    flags.define("enum", values, "optimizer", "adamw", "Optimizer.", enum_values=["adamw", "lamb"])
    fine_tuning.define_training_flags(
        values, learning_rate=5e-5, train_step=1000, warmup_step=0, save_checkpoints_steps=1000,
        by_default=False,
    )


def _check(values: flags.FlagValues) -> None:
    flags.require(values, "data_dir", "output_dir")
    fine_tuning.check_training_flags(values)
    fine_tuning.check_encoder_flags(values)


def main(values: flags.FlagValues) -> None:
    _check(values)
    splits = fine_tuning.wanted_splits(values)
    paths = {split: conll.file_path(values.data_dir, split) for split in splits}
    labels = None
    if values.label_list:
        labels = known_tasks.parse_labels(values.label_list, of_words=True)
        conll.check_labels(labels, values.scheme)
    encoder = fine_tuning.open_encoder(values)
    if labels is None and not values.do_train:
        labels = _trained_labels(values)
    sentences = {}
    for split, path in paths.items():
        sentences[split] = conll.read_sentences(path, values.scheme, labels, split != "test")
        log.info("%s: %s sentences, %s words", path, f"{len(sentences[split]):,}",
                 f"{sum(len(s.words) for s in sentences[split]):,}")
        if labels is None:  # train is the first
            labels = conll.collect_labels(sentences[split], values.scheme)
            if len(labels) < 2:
                raise DataError(f"{path}: {labels[0]} is its only label, nothing to learn")
            log.info("labels: %s", " ".join(labels))
    if values.do_train:
        there = (label for sentence in sentences["train"] for label in sentence.labels)
        fine_tuning.warn_of_labels(paths["train"], there, labels)
    values.label_list = " ".join(labels)  # kept with each checkpoint
    identity = fine_tuning.identity_of(values, encoder, known_tasks.WORDS, labels=labels)
    keeper = fine_tuning.record_keeper(values, encoder)
    records = {
        split: conll.sentence_records(path, split, sentences[split], labels, keeper)
        for split, path in paths.items()
    }

    fine_tuning.set_steps(values, records)
    flags.start_engine(values)  # takes seconds, so all input is checked before
    from albert.tasks.token_classification import TokenClassificationTask

    task = TokenClassificationTask(
        values.max_seq_length, labels, values.scheme != "none", values.classifier_dropout
    )

    def predict(trained: course.Trained) -> None:
        from albert.training import summaries

        found = trained.predict("test")
        written = [conll.write_with_labels(
            paths["test"], task.predicted_labels(found.predictions),
            os.path.join(values.output_dir, "test_predictions.txt"),
        )]
        if all(sentence.labels for sentence in sentences["test"]):
            summaries.log_results(found.results, "Predict results")
            written.append(
                summaries.write_results(values.output_dir, found.results, "predict_results")
            )
        trained.tell(written)

    course.Course(
        values, task, encoder, identity, records,
        finish=predict if values.do_predict else None,
    ).go()


def _trained_labels(values: flags.FlagValues) -> tuple[str, ...]:
    """Returns the labels that the checkpoint to be used was trained with."""
    weights = fine_tuning.finished_weights(values, None, values.output_dir)
    trained = sidecars.read_facts(weights.origin).label_names
    if not trained:
        raise FlagError(f"{weights.origin} does not tell its labels: give --label_list")
    return trained


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

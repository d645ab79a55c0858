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
from collections.abc import Sequence

from albert.cli import fine_tuning_settings, flags
from albert.cli.encoder import open_encoder
from albert.cli.fine_tuning import FineTuning, weights_to_use
from albert.cli.fine_tuning_settings import FineTuningSettings, settings_of
from albert.errors import DataError, FlagError
from albert.formats import known_tasks, run_states
from albert.tasks import conll
from albert.tasks.fine_tuning_data import FineTuningData, warn_of_labels
from albert.tasks.token_classification import TokenClassificationTask
from albert.training.metrics import log_results, write_results

log = logging.getLogger("albert")


def define_flags(values: flags.FlagValues) -> None:
    """Defines those flags of run_classifier that apply, and new ones."""
    flags.define("path", values, "data_dir", None,
                 "Folder with train.txt, dev.txt and test.txt. Required.", use="file")
    flags.define("enum", values, "scheme", "bio",
                 "How labels mark entities: bio: B- begins one and I- continues it; iob1 (as in "
                 "CoNLL-2003): B- only between adjacent ones; iobes: E- ends one, and S- is a single "
                 "word; none: not at all.", enum_values=conll.SCHEMES)
    flags.define("string", values, "label_list", None,
                 "Labels in the order of their ids, separated by commas or blanks. Default: those of "
                 "train.txt, or those that the checkpoint was trained with.")
    flags.define("integer", values, "word_column", 0,
                 "Column of the words, counted from 0, or backwards from -1.")
    flags.define("integer", values, "label_column", -1,
                 "Column of the labels, counted in the same way.")
    flags.define("bool", values, "skip_comments", False,
                 "Skip comments: lines that begin with # and a blank or tab.")
    fine_tuning_settings.define_encoder_flags(values)
    fine_tuning_settings.define_classifier_flags(values, "Dropout on the encoder's output.")


def layout_of(values: flags.FlagValues) -> conll.Layout:
    """Returns the layout that the flags describe."""
    if values.word_column == values.label_column:
        raise FlagError(f"--word_column and --label_column are both {values.word_column}")
    return conll.Layout(values.word_column, values.label_column, values.skip_comments)


def read_data(
    values: flags.FlagValues, splits: Sequence[str], labels: tuple[str, ...] | None
) -> FineTuningData:
    """Returns the sentences of the splits; `labels` are by default those of train.txt."""
    paths = {split: conll.file_path(values.data_dir, split) for split in splits}
    sentences, layout = {}, layout_of(values)
    for split, path in paths.items():
        sentences[split] = conll.read_sentences(path, values.scheme, labels, split != "test", layout)
        log.info("%s: %s sentences, %s words", path, f"{len(sentences[split]):,}",
                 f"{sum(len(s.words) for s in sentences[split]):,}")
        if labels is None:  # train is the first
            labels = conll.collect_labels(sentences[split], values.scheme)
            if len(labels) < 2:
                raise DataError(f"{path}: nothing to learn: {labels[0]} is its only label")
            log.info("labels: %s", " ".join(labels))
    if "train" in sentences:
        occurring = (label for sentence in sentences["train"] for label in sentence.labels)
        warn_of_labels(paths["train"], occurring, labels)
    return FineTuningData(known_tasks.WORDS, sentences, labels, {"labels": list(labels)})


def _trained_labels(settings: FineTuningSettings) -> tuple[str, ...]:
    """Returns the labels that the checkpoint in use was trained with."""
    origin = weights_to_use(settings.checkpoint, settings.output_dir).origin
    labels = run_states.metadata_of(run_states.read_run_state(origin)).label_names
    if not labels:
        raise FlagError(f"{origin} does not name its labels: give --label_list")
    return labels


def main(values: flags.FlagValues) -> None:
    flags.require(values, "data_dir", "output_dir")
    settings, labels = settings_of(values), None
    if values.label_list:
        labels = known_tasks.parse_labels(values.label_list, of_words=True)
        conll.check_labels(labels, values.scheme)
    encoder = open_encoder(values, settings.max_seq_length)
    if labels is None and not settings.do_train:
        labels = _trained_labels(settings)
    data = read_data(values, settings.splits, labels)
    task = TokenClassificationTask(
        settings.max_seq_length, data.labels, values.scheme != "none", values.classifier_dropout,
        test_file=conll.file_path(values.data_dir, "test") if settings.do_predict else "",
        layout=layout_of(values),
    )
    result = FineTuning(values, settings, encoder, data, task).run()
    if result and settings.do_predict and all(one.labels for one in data.examples["test"]):
        results = result.evaluations["test"].results
        log_results(results, "Predict results")
        write_results(settings.output_dir, results, "predict_results")


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

"""Predicts with a fine-tuned ALBERT: one JSON object for each line of text or row of a table.

  python -m albert.predict --model=out --input_file=texts.txt
  python -m albert.predict --model=out --input_file=test.csv --output_file=labelled.csv
  echo "EU rejects German call" | python -m albert.predict --model=ner

--model is an output directory of run_classifier, run_race, run_token_classifier or
run_squad_v1 and _v2, or has Hugging Face's layout. Give --task if the directory does not say
what the model was fine-tuned for. A line is one text, or several separated by tabs: a pair for a
task on pairs; question and passage for question answering; passage, question and options for
multiple choice. There is one answer per line, in order; the answer to an empty line is null if
the task takes several texts.

A *.txt file and the standard input are lines of text. A *.csv, *.tsv, *.jsonl, *.json or *.parquet
file is a table, as for run_classifier, with a header unless --notsv_header is given. Its text column
is --text_column, the one of training, or one with a common name. The answer to a row without text
is null. An --output_file *.csv, *.tsv or *.jsonl is the table
with the answers as additional columns: `predicted_label`, `predicted_probability`, and
`probability_LABEL` for each label.

With --output_file, the fileappears when it is complete.

A classifier gives `label`, its `probability` and all `probabilities`. A multi-label classifier
gives `labels`, those with a probability of 0.5 or more, and all `probabilities`, which are
independent of each other. A regression gives `value`.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from albert.cli import answering, flags, own_texts
from albert.errors import FlagError
from albert.formats import known_tasks, run_states
from albert.inference import fine_tuned
from albert.inference.predictors import ChoicePredictor, TaskPredictor, TokenClassifier
from albert.inference.question_answering import QuestionAnswerer
from albert.runtime.progress import Progress
from albert.storage import files
from albert.tasks import table as tables
from albert.tasks.table import Table


def define_flags(values: flags.FlagValues) -> None:
    answering.define_flags(values)
    flags.define("enum", values, "task", None,
                 "Task that the model was fine-tuned for. Default: as its directory says.",
                 enum_values=fine_tuned.TASKS)
    flags.define("string", values, "label_list", None,
                 "Names of the labels in the order of their ids, separated by commas (for labels of "
                 "words also by blanks). Default: those of the directory, else numbers.")
    flags.define("bool", values, "is_tokenized", False,
                 "Split texts into words at blanks only, not at punctuation, for "
                 "token_classification.")
    own_texts.define_table_flags(values)
    flags.define("path", values, "output_file", None,
                 "File for the answers; for a table, *.csv, *.tsv and *.jsonl also repeat its "
                 "columns. Default: the standard output.", use="output")


def main(values: flags.FlagValues) -> None:
    answering.check_flags(values)
    own_texts.check_table_flags(values)
    name, is_table = answering.source_name(values.input_file), _is_table(values)
    _check_output(values, is_table)
    texts = None if is_table else answering.read_texts(values.input_file)
    opened = answering.open_model(values)
    labels = ()
    if values.label_list:
        of_words = TokenClassifier.task in (values.task, fine_tuned.known_task(opened))
        labels = known_tasks.parse_labels(values.label_list, of_words)
    predictor = fine_tuned.predictor_of(
        opened, values.task, labels, values.is_tokenized,
        f"give --task={'|'.join(fine_tuned.TASKS)}",
    )
    if labels and isinstance(predictor, QuestionAnswerer | ChoicePredictor):
        raise FlagError(f"--label_list has no effect on {predictor.task}")
    table = None
    if is_table:
        table, inputs = _read_table(values, predictor)
    else:
        inputs = [
            predictor.columns(line) if line.strip(" ") or predictor.min_texts == 1 else None
            for line in texts
        ]
        for number, columns in enumerate(inputs, start=1):
            if columns is not None:
                predictor.check(columns, f"{name}:{number}", "tab-separated texts")
    if values.output_file:
        return _write_answers(values, predictor, inputs, table)
    for answer in _answers(predictor, inputs):
        print(answering.as_json(answer), flush=True)


def _write_answers(
    values: flags.FlagValues, predictor: TaskPredictor, inputs: Sequence, table: Table | None
) -> None:
    """Publishes the answers."""
    path, answers = values.output_file, _answers(predictor, inputs, has_progress=True)
    if table and path.endswith(tables.WRITTEN):
        tables.write_table(path, *_with_answers(table, answers))
    else:
        with files.atomic_write(path) as stream:
            stream.writelines(answering.as_json(answer) + "\n" for answer in answers)
    flags.log.info("wrote %s answers: %s", f"{len(inputs):,}", path)


def _answers(predictor: TaskPredictor, inputs: Sequence, has_progress: bool = False) -> Iterator:
    """Yields the answer to each input, and None for None."""
    given = [columns for columns in inputs if columns is not None]
    answers = predictor.predict(given, Progress("predicted", len(given), "lines") if has_progress else None)
    for columns in inputs:
        yield None if columns is None else next(answers)
    next(answers, None)  # logs how many were truncated


# === Tables ===


def _check_output(values: flags.FlagValues, is_table: bool) -> None:
    """Raises a FlagError for an output file whose name promises a format that is not written."""
    path = values.output_file or ""
    if tables.ending(path) == tables.PARQUET or path.endswith((*tables.COMPRESSED, ".xlsx")):
        raise FlagError(f"--output_file={path}: answers are written as *.jsonl, *.csv or *.tsv")
    if not is_table and tables.ending(path) in (".csv", ".tsv"):
        raise FlagError(f"--output_file={path}: answers to lines of text are JSON lines: name it "
                        "*.jsonl, or give a table as --input_file")


def _is_table(values: flags.FlagValues) -> bool:
    path = values.input_file
    kind, given = tables.ending(path), flags.given_as_typed(values, *own_texts.TABLE_FLAGS)
    if path == answering.STDIN or kind not in tables.KINDS:
        if given:
            raise FlagError(f"{', '.join(given)}: only with a table as --input_file")
        return False
    # A *.txt file is lines of text, unless a flag says more.
    return kind != ".txt" or bool(given)


def _read_table(
    values: flags.FlagValues, predictor: TaskPredictor
) -> tuple[Table, list[Sequence[str] | None]]:
    """Returns --input_file and the texts of each row, None for a row without text."""
    path, max_texts = values.input_file, predictor.max_texts
    if predictor.min_texts > 2:
        raise FlagError(f"--input_file={path}: {predictor.task} takes lines of text")
    origin = predictor.session.source.weights().origin
    trained = run_states.read_run_state(origin).get("flags", {})
    flag_names = ("text_column", "text_pair_column")[:max_texts]
    names, known = [[get(name) for name in flag_names] for get in (
        lambda name: getattr(values, name), trained.get
    )]

    table = own_texts.open_table(values, "input_file")
    numbers = [str(i) for i in range(len(table.names))]
    if list(table.names) in (numbers[:max_texts], table.names[:1]):  # no header, or one column: only texts
        known = list(table.names)
    names = [
        given or (name if name in table.names else None)
        for given, name in itertools.zip_longest(names, known[: len(names)])
    ]
    columns = tables.find_columns(table, *names, needs_label=False, max_texts=max_texts)
    if columns.pair is None and predictor.min_texts == 2:
        raise FlagError(f"{path}: give --text_pair_column; its columns are {table.named(range(len(table.names)))}")
    rows = zip(*map(table.texts, columns.texts), strict=True)
    return table, [row if row[0].strip() else None for row in rows]


def _with_answers(
    table: Table, answers: Iterable[Mapping[str, Any] | None]
) -> tuple[list[str], list[list[Any]]]:
    """Returns names and rows of the table with the answers as columns, which replace equal names."""
    cells = [{
        name: value for key, given in (answer or {}).items() for name, value in (
            ((f"probability_{label}", p) for label, p in given.items()) if key == "probabilities"
            else [(f"predicted_{key}", given)]
        )
    } for answer in answers]
    names = list(dict.fromkeys(name for of_row in cells for name in of_row))
    others = [i for i, name in enumerate(table.names) if name not in names]
    rows = [
        [row[i] for i in others] + [of_row.get(name) for name in names]
        for row, of_row in zip(table.rows, cells, strict=True)
    ]
    return [table.names[i] for i in others] + names, rows


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

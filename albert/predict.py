"""Predicts with a fine-tuned ALBERT: one JSON object for each line of text or row of a table.

  python -m albert.predict --model=out --input_file=texts.txt
  python -m albert.predict --model=out --input_file=test.csv --output_file=labelled.csv
  echo "EU rejects German call" | python -m albert.predict --model=ner

--model is an output directory of run_classifier, run_race, run_token_classifier or run_squad, or
a model in Hugging Face's layout. Pass --task if the directory does not say what the model was
fine-tuned for. A line is one text, or several separated by tabs: a pair for a task on pairs;
question and passage for question answering; passage, question and options for multiple choice.
There is one answer per line, in order; the answer to an empty line is null if the task takes
several texts.

A *.txt file and the standard input are lines of text. A *.csv, *.tsv, *.jsonl, *.json or *.parquet
file is a table, as for run_classifier, with a header unless you pass --notsv_header. Its text column
is --text_column, the one used in training, or one with a common name. The answer to a row without
text is null. An --output_file *.csv, *.tsv or *.jsonl is the table with the answers as additional
columns: `predicted_label`, `predicted_probability`, and `probability_LABEL` for each label. The file
appears when it is complete.

A classifier gives `label`, its `probability` and all `probabilities`. A multi-label classifier
gives `labels`, those with a probability of 0.5 or more (or the --threshold of its last
evaluation), and all `probabilities`, which are independent of each other. A regression gives `value`.
"""

import itertools

from albert.cli import answering, flags, table_flags
from albert.errors import FlagError
from albert.formats.metadata import read_run_state
from albert.inference import fine_tuned, precision
from albert.runtime.progress import Progress
from albert.tasks import table as tables

MANY = 10_000  # inputs: with more, a faster precision is worth a line


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
    table_flags.define_flags(values)
    flags.define("path", values, "output_file", None,
                 "File for the answers; for a table, *.csv, *.tsv and *.jsonl also repeat its "
                 "columns. Default: the standard output.", use="output")


def main(values: flags.FlagValues) -> None:
    # === Flags ===
    answering.check_flags(values)
    table_flags.check_flags(values)
    path, output = values.input_file, values.output_file or ""
    kind, typed = tables.ending(path), flags.given_as_typed(values, *table_flags.NAMES)
    # A *.txt file is lines of text, unless a flag says more.
    is_table = path != answering.STDIN and kind in tables.KINDS and (kind != ".txt" or bool(typed))
    if typed and not is_table:
        raise FlagError(f"{', '.join(typed)}: only with a table as --input_file")
    if tables.ending(output) == tables.PARQUET or output.lower().endswith((*tables.COMPRESSED, ".xlsx")):
        raise FlagError(f"--output_file={output}: answers are written as *.jsonl, *.csv or *.tsv")
    if not is_table and tables.ending(output) in (".csv", ".tsv"):
        raise FlagError(f"--output_file={output}: answers to lines of text are JSON lines: name it "
                        "*.jsonl, or give a table as --input_file")

    # === Model ===
    session = answering.open_model(values)
    task, labels = fine_tuned.task_of(session.source, values.task), ()
    if values.label_list:
        labels = flags.parse_labels(values.label_list, task == fine_tuned.TokenClassifier.task)
    predictor = fine_tuned.predictor_of(session, task, labels, values.is_tokenized)

    # === Inputs: the texts of each line or row, None for an empty one ===
    if is_table:
        max_texts = predictor.max_texts
        if predictor.min_texts > 2:
            raise FlagError(f"--input_file={path}: {predictor.task} takes lines of text")
        table = table_flags.open_table(values, "input_file")
        trained = read_run_state(session.source.weights().origin).get("flags", {})
        known = [trained.get("text_column"), trained.get("text_pair_column")]
        numbers = [str(number) for number in range(len(table.names))]
        # No header, or one column: only texts.
        if list(table.names) in (numbers[:max_texts], table.names[:1]):
            known = [*table.names, None]
        names = [
            typed_name or (name if name in table.names else None)
            for typed_name, name in zip((values.text_column, values.text_pair_column)[:max_texts], known)
        ]
        columns = tables.find_columns(table, *names, needs_label=False, max_texts=max_texts)
        if columns.pair is None and predictor.min_texts == 2:
            every = table.named(range(len(numbers)))
            raise FlagError(f"{path}: pass --text_pair_column; its columns are {every}")
        rows = zip(*map(table.texts, columns.texts), strict=True)
        if tables.ending(output) in tables.WRITTEN:  # what cannot be written is found before the answers
            if tables.ending(output) in tables.NAMED and len({*table.names}) < len(table.names):
                raise FlagError(f"--output_file={output}: columns of {path} have equal names "
                                f"({', '.join(table.names)}): name it *.csv")
            for number in range(len(table.names)):
                table.cells(number)
        inputs = [row if row[0].strip() else None for row in rows]
    else:
        name, inputs = answering.source_name(path), []
        for number, line in enumerate(answering.read_texts(path), start=1):
            is_empty = predictor.min_texts > 1 and not line.strip(" ")
            columns = line.split(predictor.separator)
            inputs.append(None if is_empty else predictor.read(columns, f"{name}:{number}, split at tabs"))

    # === Answers ===
    asked = [columns for columns in inputs if columns is not None]
    if len(asked) > MANY and session.dtype == "float32":
        for name, (speed, _) in precision.compare(predictor, asked[:1000], seconds=0.5).items():
            if speed > 1:
                flags.log.info("%s inputs: --mixed_precision=%s would be %.1f times as fast, measured on "
                               "a few", f"{len(asked):,}", name, speed)
    computed = predictor.predict(asked, Progress("predicted", len(asked), "lines") if output else None)
    answers = (None if columns is None else next(computed) for columns in inputs)
    if is_table and tables.ending(output) in tables.WRITTEN:  # as columns, which replace those of equal names
        cells = []
        for answer in answers:
            cells.append({})
            for key, value in (answer or {}).items():
                if key == "probabilities" and isinstance(value, dict):
                    cells[-1] |= {f"probability_{label}": p for label, p in value.items()}
                else:
                    cells[-1][f"predicted_{key}"] = value
        added = list(dict.fromkeys(itertools.chain.from_iterable(cells)))
        others = [number for number, name in enumerate(table.names) if name not in added]
        columns = [*map(table.cells, others), *([of_row.get(name) for of_row in cells] for name in added)]
        names = [*(table.names[number] for number in others), *added]
        tables.write_table(output, names, zip(*columns, strict=True))
    else:
        answering.write_lines(answers, output)
    next(computed, None)  # logs how many were truncated
    if output:
        flags.log.info("wrote %s answers: %s", f"{len(inputs):,}", output)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

"""Answers lines of text with a fine-tuned ALBERT, one JSON object a line.

  python -m albert.predict --model=out --input_file=texts.tsv
  echo "EU rejects German call" | python -m albert.predict --model=ner

The directory says what the model was fine-tuned for: an output directory of run_classifier,
run_race, run_token_classifier or run_squad_v1 and _v2, or Hugging Face's layout;
--task says it where the directory does not. A line is one text, or several separated by
tabs: a pair for a task of pairs; question and passage for question answering;
passage, question and four options for multiple choice. Each line has its answer, in order; that
of an empty line is null where several texts are needed.

A classifier answers with `label`, its `probability` and all `probabilities`. One that gives
a text several labels answers with `labels`, those with a probability of 0.5 or more, and all
`probabilities`, each independent. A regression answers with `value`.
"""

import contextlib
import json

from albert.cli import answering, flags
from albert.errors import FlagError
from albert.formats import known_tasks
from albert.inference import heads, predictors
from albert.runtime.progress import Progress
from albert.storage import files


def define_flags(values: flags.FlagValues) -> None:
    answering.define_flags(values)
    flags.define("enum", values, "task", None,
                 "What the model was fine-tuned for; by default what its directory says.",
                 enum_values=heads.TASKS)
    flags.define("string", values, "label_list", None,
                 "Names of the labels in the order of their ids, separated by commas, those of words "
                 "also by blanks; by default those that the directory names, else numbers.")
    flags.define("bool", values, "is_tokenized", False,
                 "Cut texts into words at blanks only. By default punctuation around words is cut "
                 "off too. For token_classification.")
    flags.define("path", values, "onnx_file", None,
                 "What export_model wrote of this model as .onnx: then onnxruntime computes.",
                 use="file")
    flags.define("path", values, "output_file", None,
                 "Where the answers go; the standard output by default.", use="output")


def main(values: flags.FlagValues) -> None:
    answering.check_flags(values)
    lines = answering.read_texts(values.input_file)
    opened = answering.open_model(values)
    labels = ()
    if values.label_list:
        of_words = heads.TOKENS in (values.task, heads.known_task(opened))
        labels = known_tasks.parse_labels(values.label_list, of_words)
    predictor = heads.predictor_of(
        opened, values.task, labels, values.is_tokenized, f"give --task={'|'.join(heads.TASKS)}"
    )
    if labels and predictor.task in (heads.QUESTIONS, heads.CHOICE):
        raise FlagError(f"--label_list has no effect on {predictor.task}")
    name = answering.source_name(values.input_file)
    inputs = [
        predictor.columns(line) if line.strip(" ") or predictor.least == 1 else None
        for line in lines
    ]
    for number, columns in enumerate(inputs, start=1):
        if columns is not None:
            predictor.check(columns, f"{name}:{number}", "tab-separated texts")
    _write_answers(values, predictor, inputs)


def _write_answers(values: flags.FlagValues, predictor: predictors.Predictor, inputs) -> None:
    stream = progress = None
    given = [columns for columns in inputs if columns is not None]
    with contextlib.ExitStack() as stack:
        if values.output_file:
            stream = stack.enter_context(files.atomic_write(values.output_file))
            progress = Progress("predicted", len(given), "lines")
        answers = predictor.predict(given, progress)
        for columns in inputs:
            answer = None if columns is None else next(answers)
            print(json.dumps(answer, ensure_ascii=False), file=stream, flush=stream is None)
        next(answers, None)  # reports how many were cut


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

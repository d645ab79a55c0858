"""Answers lines of text with a fine-tuned ALBERT, one JSON object a line.

  python -m albert.predict --model=out --input_file=texts.tsv
  echo "EU rejects German call" | python -m albert.predict --model=ner

--model is an output directory of run_classifier, run_race, run_token_classifier or
run_squad_v1 and _v2, or has Hugging Face's layout. It says what the model was fine-tuned
for; if not, give --task. A line is one text, or several separated by tabs: a pair for a
task of pairs; question and passage for question answering; passage, question and four
options for multiple choice. There is one answer a line, in order; an empty line's answer is
null if several texts are needed.

A classifier answers with `label`, its `probability` and all `probabilities`. One that gives
a text several labels answers with `labels`, those with a probability of 0.5 or more, and all
`probabilities`, independent of each other. A regression answers with `value`.
"""

import contextlib
import json

from albert.cli import answering, flags
from albert.errors import FlagError
from albert.formats import known_tasks
from albert.inference import fine_tuned
from albert.inference.predictors import ChoicePredictor, TaskPredictor, TokenClassifier
from albert.inference.question_answering import QuestionAnswerer
from albert.runtime.progress import Progress
from albert.storage import files


def define_flags(values: flags.FlagValues) -> None:
    answering.define_flags(values)
    flags.define("enum", values, "task", None,
                 "What the model was fine-tuned for; by default what its directory says.",
                 enum_values=fine_tuned.TASKS)
    flags.define("string", values, "label_list", None,
                 "Names of the labels in the order of their ids, separated by commas, those of "
                 "words also by blanks; by default those of the directory, else numbers.")
    flags.define("bool", values, "is_tokenized", False,
                 "Split texts into words at blanks only. By default punctuation around words is "
                 "split off too. For token_classification.")
    flags.define("path", values, "onnx_file", None,
                 "The .onnx file that export_model wrote of this model: onnxruntime then computes.",
                 use="file")
    flags.define("path", values, "output_file", None,
                 "File to write the answers to; the standard output by default.", use="output")


def main(values: flags.FlagValues) -> None:
    answering.check_flags(values)
    lines = answering.read_texts(values.input_file)
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
    name = answering.source_name(values.input_file)
    inputs = [
        predictor.columns(line) if line.strip(" ") or predictor.min_texts == 1 else None
        for line in lines
    ]
    for number, columns in enumerate(inputs, start=1):
        if columns is not None:
            predictor.check(columns, f"{name}:{number}", "tab-separated texts")
    _write_answers(values, predictor, inputs)


def _write_answers(values: flags.FlagValues, predictor: TaskPredictor, inputs) -> None:
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

"""Compares settings of pretraining on your own text, each with several seeds.

  python scripts/ablate.py --grid=configs/ablations/table5.json --input_file=corpus.txt
      --spm_model_file=spm.model --output_dir=table5

After each run it writes report.md (means, spreads, and whether the settings rank in the paper's
order) and results.json, with each run's learning curve. A grid can take days: --max_minutes stops it,
and rerunning the command resumes it.
"""

import os

from ablation import report, runs
from ablation.grid import Grid
from albert.cli import corpus_flags, flags
from albert.errors import FlagError
from albert.storage import files, locks
from albert.text import corpus_files


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "grid", None,
                 "File with the settings to compare, such as those in configs/ablations. Required.",
                 use="file")
    flags.define("path", values, "input_file", None,
                 f"The text: {corpus_flags.WHERE}. Required.", use="texts")
    corpus_flags.define_flags(values)
    flags.define("path", values, "spm_model_file", None, "SentencePiece model. Required.",
                 use="file")
    flags.define("string", values, "output_dir", None,
                 "Local directory for records, runs and report. Required.")
    flags.define("string", values, "settings", None,
                 "Compare only these settings: names, separated by semicolons. Default: all.")
    flags.define("string", values, "seeds", None,
                 "Comma-separated seeds: each setting is trained once with each. Default: the "
                 "grid's.")
    flags.define("integer", values, "tokens", None,
                 "Tokens that each run is trained on. Default: the grid's.", lower_bound=1)
    flags.define("float", values, "max_minutes", 0.0,
                 "Save everything and stop after this number of minutes. 0: continue until all is done.",
                 lower_bound=0)


def main(values: flags.FlagValues) -> None:
    flags.require(values, "grid", "input_file", "spm_model_file", "output_dir")
    grid = Grid.read(files.require_file(values.grid, "grid"))
    grid = grid.narrowed(_names(values.settings), _seeds(values.seeds), values.tokens)
    files.require_file(values.spm_model_file, "spm_model_file")
    inputs = corpus_files.find(values.input_file, "input_file")
    if "://" in values.output_dir:
        raise FlagError(f"--output_dir={values.output_dir}: the commands share a local directory: copy it "
                        "to cloud storage afterwards")
    work = runs.Work(
        grid, inputs, values.spm_model_file, files.make_dirs(values.output_dir),
        {name: value for name in (*corpus_flags.FLAGS, "split_sentences")
         if (value := flags.given(values, name)) is not None},
    )
    with locks.hold(values.output_dir):
        for _ in work.execute(values.max_minutes * 60):
            report.write(grid, work.results(), values.output_dir)
    flags.log.info("report: %s", os.path.join(values.output_dir, "report.md"))


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(";")] if text else None


def _seeds(text: str | None) -> list[int] | None:
    try:
        return [int(seed) for seed in text.split(",")] if text else None
    except ValueError as error:
        raise FlagError(f"--seeds={text}: not integers with commas between them") from error


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

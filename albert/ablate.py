"""Asks a question of one's own text: pretrains every setting of a grid, with several seeds.

  python -m albert.ablate --grid=configs/ablations/table5.json --input_file=corpus.txt
      --spm_model_file=spm.model --output_dir=table5

Writes report.md (means and spreads, and the paper's order beside the order found),
results.json and curves.png after every run. The same command goes on where it was stopped;
--max_minutes stops it, with everything saved.
"""

import os

from albert.ablation import curves, report, runs
from albert.ablation.grid import Grid
from albert.cli import flags
from albert.data import files, temporaries
from albert.errors import FlagError


def define_flags(values: flags.FlagValues) -> None:
    flags.define("string", values, "grid", None,
                 "Settings to compare: one of configs/ablations. Required.")
    flags.define("string", values, "input_file", None,
                 "Text (packed or not), one sentence a line, a blank line between documents. "
                 "Required.")
    flags.define("string", values, "spm_model_file", None, "SentencePiece model. Required.")
    flags.define("string", values, "glue_dir", None,
                 "Folder with GLUE's tasks, for grids that fine-tune too; without it, they do not.")
    flags.define("string", values, "output_dir", None, "Where everything goes. Required.")
    flags.define("string", values, "settings", None,
                 "Names with semicolons between them: these settings alone.")
    flags.define("string", values, "seeds", None, "Comma-separated seeds, if not the grid's.")
    flags.define("integer", values, "tokens", None,
                 "Tokens that each run is trained on, if not the grid's.", least=1)
    flags.define("integer", values, "parallel", 1,
                 "Runs at a time, each on cores of its own where there are enough.", least=1)
    flags.define("float", values, "max_minutes", 0.0,
                 "Stop, with everything saved, after so many minutes; 0: when all is done.",
                 least=0)


def main(values: flags.FlagValues) -> None:
    flags.require(values, "grid", "input_file", "spm_model_file", "output_dir")
    grid = Grid.read(files.require_file(values.grid, "grid"))
    grid = grid.narrowed(_names(values.settings), _seeds(values.seeds), values.tokens)
    files.require_file(values.spm_model_file, "spm_model_file")
    inputs = files.expand_globs(values.input_file, "input_file")
    if values.glue_dir and not os.path.isdir(values.glue_dir):
        raise FlagError(f"--glue_dir: no such directory: {values.glue_dir}")
    work = runs.Work(
        grid, inputs, values.spm_model_file, values.glue_dir, files.make_dirs(values.output_dir)
    )
    with temporaries.lock_run_dir(values.output_dir):
        for _ in work.execute(values.parallel, values.max_minutes * 60):
            results = work.results()
            report.write(grid, results, values.output_dir)
            curves.draw(grid, results, os.path.join(values.output_dir, "curves.png"))
    flags.log.info("report: %s", os.path.join(values.output_dir, "report.md"))


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(";")] if text else None


def _seeds(text: str | None) -> list[int] | None:
    try:
        return [int(seed) for seed in text.split(",")] if text else None
    except ValueError as error:
        raise FlagError(f"--seeds={text}: not whole numbers with commas between them") from error


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

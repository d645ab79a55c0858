"""Sums up what scripts/quickstart.sh made: report.md and curves.png.

  python -m albert.report --directory=quickstart_output

It reads records, metrics, results and the configuration, and trains nothing. The pretrained
model is compared with one that always gives the commonest answer, the classifier with one
that started from random weights.
"""

import os

from albert.cli import flags
from albert.config import AlbertConfig
from albert.errors import DataError
from albert.storage import files
from albert.training import curves, run_report


def define_flags(values: flags.FlagValues) -> None:
    flags.define("path", values, "directory", None, "Directory that quickstart.sh wrote. Required.",
                 use="directory")
    flags.define("path", values, "albert_config_file", None,
                 "Architecture. Default: <directory>/pretrained/albert_config.json.", use="file")


def main(values: flags.FlagValues) -> None:
    flags.require(values, "directory")
    if not os.path.isdir(values.directory):
        raise DataError(f"--directory: no such directory: {values.directory}")
    config = AlbertConfig.from_flag(
        values.albert_config_file
        or os.path.join(values.directory, "pretrained", "albert_config.json")
    )
    run = run_report.Quickstart.read(values.directory, config)
    text = run.report()
    picture = os.path.join(values.directory, "curves.png")
    curves.draw(picture, run.metrics, run.baselines)
    path = os.path.join(values.directory, "report.md")
    with files.atomic_write(path) as stream:
        stream.write(text)
    print(text)
    flags.log.info("report: %s; curves: %s", path, picture)


cli = flags.command(__doc__, define_flags, main)

if __name__ == "__main__":
    cli()

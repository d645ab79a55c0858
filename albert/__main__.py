"""Lists the commands: `python -m albert`."""

import ast
import pathlib
import sys

import albert


def main() -> None:
    """Prints the version and a line for each command, the first of its docstring."""
    if sys.argv[1:] not in ([], ["--help"], ["--version"]):
        print(f"error: not {sys.argv[1]}, but python -m albert.NAME runs a command", file=sys.stderr)
        sys.exit(2)
    lines = [f"albert {albert.__version__}"]
    if "--version" not in sys.argv:
        lines.append(
            "\nRun each as albert-NAME or, with underscores, python -m albert.NAME; --help shows flags.\n")
        for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
            source = path.read_text("utf-8")
            if "\ncli = " in source:
                summary = ast.get_docstring(ast.parse(source)).partition("\n")[0]
                lines.append(f"  {path.stem.replace('_', '-'):25}{summary}")
    sys.stdout.write("\n".join([*lines, ""]))  # at once, so that `| head` does not interrupt it


if __name__ == "__main__":
    main()

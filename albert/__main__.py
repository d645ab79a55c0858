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
    print(f"albert {albert.__version__}")
    if "--version" not in sys.argv:
        print("\nRun each as albert-NAME or, with underscores, python -m albert.NAME; --help lists its flags.\n")
        for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
            source = path.read_text("utf-8")
            if "\ncli = " in source:
                summary = ast.get_docstring(ast.parse(source)).partition("\n")[0]
                print(f"  {path.stem.replace('_', '-'):25}{summary}")


if __name__ == "__main__":
    main()

"""Measures how long a person waits for the first answer: from a command's start, and from a session's.

  python scripts/maintainers/first_answer.py --spm_model_file=30k-clean.model --starts=10

A classifier with random weights (or `--model`) answers one text by `predict` and by `open_session`, by
turns, each in a new process. It prints the processor, the median and the slowest of the starts,
and for sessions where the time goes. The answers must be the same to 1e-5.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

TEXT = "The ship left the harbour at dawn, and nobody on the quay knew when she would return.\n"
SESSION = """
import sys, time
begin = float(sys.argv[1])
import albert
import albert.inference.session, onnxruntime
marks = {"imports": time.time()}
session = albert.open_session(sys.argv[2])
answer = session.classify(sys.argv[3])
marks["weights, graph and first answer"] = time.time()
session.classify(sys.argv[3])
marks["second answer"] = time.time()
times = list(marks.values())
import json
print(json.dumps(answer))
print(json.dumps({n: t - b for (n, t), b in zip(marks.items(), [begin, *times])}))
"""


def write_model(folder: str, config: str, spm_model_file: str | None) -> None:
    """Writes a classifier of two labels with random weights."""
    import albert
    from albert.formats import huggingface
    from albert.storage import shipped

    vocabulary = spm_model_file or shipped.vocabulary_of("small_en")
    tokenizer = albert.AlbertTokenizer.from_pretrained(vocabulary)
    config = dataclasses.replace(huggingface.read_config(config), vocab_size=len(tokenizer))
    albert.AlbertForSequenceClassification(config, 2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def processor() -> str:
    """Returns the processor's name."""
    with open("/proc/cpuinfo", encoding="utf-8") as stream:
        return next(line.split(":")[1].strip() for line in stream if line.startswith("model name"))


def start(kind: str, model: str) -> tuple[float, dict, dict]:
    """Returns the seconds from the start of a process to its end, its answer, and its parts."""
    environment = {n: x for n, x in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    begin = time.time()
    code = ["-m", "albert.predict", f"--model={model}"]
    if kind == "session":
        code = ["-c", SESSION, str(begin), model, TEXT.strip()]
    done = subprocess.run([sys.executable, *code], input=TEXT, capture_output=True, text=True,
                          env=environment)
    seconds = time.time() - begin
    if done.returncode:
        sys.exit(done.stderr)
    answer, *parts = map(json.loads, done.stdout.splitlines())
    return seconds, answer, parts[0] if parts else {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="base_v2", help="a released architecture or a file")
    parser.add_argument("--spm_model_file", help="vocabulary; by default that of small_en")
    parser.add_argument("--model", help="a fine-tuned classifier instead")
    parser.add_argument("--starts", type=int, default=10, help="starts of each side")
    given = parser.parse_args()
    folder = given.model or tempfile.mkdtemp()
    if not given.model:
        write_model(folder, given.config, given.spm_model_file)
    found: dict[str, list] = {"predict": [], "session": []}
    for number in range(given.starts + 1):
        for kind, starts in found.items():
            one = start(kind, folder)
            if number:  # the first start of each fills caches
                starts.append(one)
    expected = found["predict"][0][1]["probabilities"]
    for starts in found.values():
        for _, answer, _ in starts:
            for label, value in expected.items():
                assert abs(answer["probabilities"][label] - value) < 1e-5, (answer, expected)
    print(f"{processor()}; {given.model or given.config}, {given.starts} starts of each side by turns")
    print("| | median, s | slowest, s | parts, s |\n|---|---|---|---|")
    for kind, starts in found.items():
        times = [seconds for seconds, _, _ in starts]
        parts = {name: statistics.median(p[name] for _, _, p in starts) for name in starts[0][2]}
        named = ", ".join(f"{name} {value:.2f}" for name, value in parts.items())
        print(f"| {kind} | {statistics.median(times):.2f} | {max(times):.2f} | {named} |")


if __name__ == "__main__":
    main()

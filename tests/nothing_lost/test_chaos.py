"""scripts/maintainers/chaos.py passes where nothing is lost, and fails where something is."""

import json

import pytest

import jobs


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--kills=3", "--steps=600"],
        ["--workers=2", "--kills=2", "--steps=400"],
        ["--work=data", "--kills=6", "--documents=600"],
    ],
    ids=["one worker", "two workers", "data creation"],
)
def test_a_small_storm_makes_no_difference(arguments, tmp_path, capsys):
    chaos = jobs.script("chaos")
    assert chaos.main([*arguments, f"--directory={tmp_path / 'work'}"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("passed: ") and "bit-equal" in line


def test_a_difference_is_noticed(whole, tmp_path):
    chaos, torn = jobs.script("chaos"), tmp_path / "torn"
    whole.copy(torn)
    chaos._compare_runs(whole.out, torn, 23)
    lines = [json.loads(line) for line in (torn / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["loss"] += 1e-7
    (torn / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(chaos.Difference, match="metrics differ"):
        chaos._compare_runs(whole.out, torn, 23)
    (torn / "x.tmp-1").touch()
    with pytest.raises(chaos.Difference):
        chaos._look_for_litter(torn)

"""Growing: a shallow model becomes a deep one, and short rows long ones, in one run or two."""

import json
import pathlib

import numpy as np
import pytest
from helpers import (
    NEEDS_JAX,
    SIZES,
    metrics,
    run,
    run_here,
    write_config,
    write_pretraining_records,
)

from albert import run_pretraining
from albert.formats import checkpoints
from albert.model.encoder_options import Growing
from albert.training.run_settings import RunConfig


def command(*arguments: str) -> int:
    return run_here(run_pretraining, *arguments)


@pytest.fixture
def job(tmp_path):
    """Flags of a tiny run of 6 steps and 3 layers without dropout, saved every 3."""
    write_pretraining_records(tmp_path / "train.tfrecord")
    config = write_config(
        tmp_path, num_hidden_layers=3, hidden_dropout_prob=0, attention_probs_dropout_prob=0
    )

    def flags_of(out="out", **changes):
        given = dict(
            albert_config_file=config, input_file=tmp_path / "train.tfrecord",
            output_dir=tmp_path / out, max_seq_length=12, max_predictions_per_seq=3,
            train_batch_size=4, eval_batch_size=4, max_eval_steps=2, num_train_steps=6,
            num_warmup_steps=1, save_checkpoints_steps=3, log_steps=1, learning_rate=0.01,
            do_eval=True,
        ) | changes
        return [f"--{name}={value}" for name, value in given.items()]

    return flags_of


def weights(prefix: pathlib.Path) -> dict[str, np.ndarray]:
    opened = checkpoints.open_weights(str(prefix))
    return {name: opened.read(name) for name in opened.shapes}


def losses(folder: pathlib.Path, kind: str) -> list[float]:
    return [line["loss"] for line in metrics(folder) if line["kind"] == kind]


@pytest.mark.slow
@pytest.mark.parametrize("use_xla", [False, True])
def test_each_stage_of_a_depth_schedule_is_the_model_of_that_depth(job, tmp_path, use_xla):
    assert command(*job(depth_schedule="1:2,2:4", save_checkpoints_steps=2, use_xla=use_xla)) == 0
    grown = losses(tmp_path / "out", "eval")
    # Each checkpoint evaluated as a model of the depth that its stage had.
    for step, layers, loss in zip((2, 4, 6), (1, 2, 3), grown, strict=True):
        (tmp_path / str(step)).mkdir()
        config = write_config(
            tmp_path / str(step), num_hidden_layers=layers, hidden_dropout_prob=0,
            attention_probs_dropout_prob=0,
        )
        # What tells that it is on the way to a deeper one, which evaluation heeds.
        (tmp_path / f"out/model.ckpt-{step}.json").unlink()
        assert 0 == command(*job(
            f"eval-{step}", do_train=False, albert_config_file=config,
            init_checkpoint=tmp_path / f"out/model.ckpt-{step}",
        ))
        found = json.loads((tmp_path / f"eval-{step}/eval_results.json").read_text())
        assert found["loss"] == pytest.approx(loss, rel=1e-5)
    # And with all layers at once it is another model from the start.
    assert command(*job("deep", save_checkpoints_steps=2, use_xla=use_xla)) == 0
    deep = losses(tmp_path / "deep", "train")
    assert deep[0] != pytest.approx(losses(tmp_path / "out", "train")[0], rel=1e-6)


@pytest.mark.slow
def test_a_growing_run_that_is_stopped_goes_on_bit_exactly(job, tmp_path):
    for step in (6, 3, 6):
        name = "whole" if step == 6 and not (tmp_path / "whole").exists() else "parts"
        assert command(*job(name, depth_schedule="1:3,2:5", until_step=step)) == 0
    assert_same(tmp_path)


def assert_same(folder: pathlib.Path) -> None:
    one, two = (weights(folder / f"{name}/model.ckpt-6") for name in ("whole", "parts"))
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def test_until_step_ends_where_the_same_command_goes_on_bit_exactly(job, tmp_path):
    assert command(*job("whole")) == 0
    assert command(*job("parts", until_step=3)) == 0
    assert not (tmp_path / "parts/model.ckpt-6.index").exists()
    assert json.loads((tmp_path / "parts/eval_results.json").read_text())["global_step"] == 3
    assert command(*job("parts")) == 0
    assert_same(tmp_path)


def test_a_deeper_model_starts_from_a_shallower_one(job, tmp_path):
    shallow = tmp_path / "shallow"
    shallow.mkdir()
    config = write_config(shallow, num_hidden_layers=1)
    assert command(*job("one", albert_config_file=config)) == 0
    assert command(*job("three", init_checkpoint=tmp_path / "one/model.ckpt-6")) == 0
    account = json.loads((tmp_path / "three/warm_start.json").read_text())
    assert not account["new"]


@pytest.mark.parametrize("more,said", [
    ({"depth_schedule": "1"}, "give LAYERS:STEP"),
    ({"depth_schedule": "1:2:3"}, "give LAYERS:STEP"),
    ({"depth_schedule": "1:4,2:2"}, "steps must rise"),
    ({"depth_schedule": "4:2"}, "the model has 3 layers"),
    ({"depth_fade_steps": 2}, "--depth_fade_steps goes with --depth_schedule"),
    ({"depth_schedule": "1:1,2:3", "depth_fade_steps": 2}, "layers are added at step 1, and what"),
    ({"depth_schedule": "1:4", "depth_fade_steps": 2}, "added at step 4, and what follows, at step 6"),
    ({"until_step": -1}, "--until_step=-1: must be a whole number, at least 0"),
])
def test_schedules_that_cannot_be_are_refused(job, tmp_path, more, said, capsys):
    assert command(*job(**more)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_layers_with_weights_of_their_own_cannot_be_added(job, tmp_path, capsys):
    config = write_config(tmp_path, num_hidden_layers=3, num_hidden_groups=3)
    assert command(*job(albert_config_file=config, depth_schedule="1:2")) == 2
    assert "only layers that share all their weights" in capsys.readouterr().err


# --- New layers fade in ---


@pytest.mark.slow
def test_layers_that_are_added_change_nothing_at_first_and_all_in_the_end(job, tmp_path):
    fading = dict(depth_schedule="1:2", depth_fade_steps=3, save_checkpoints_steps=1,
                  keep_checkpoint_max=0)
    assert command(*job("fading", **fading)) == 0
    assert command(*job("one", depth_schedule="1:6")) == 0
    assert command(*job("at-once", depth_schedule="1:2")) == 0
    fading, one, at_once = (losses(tmp_path / o, "train") for o in ("fading", "one", "at-once"))
    assert fading[:3] == pytest.approx(one[:3], rel=1e-6)  # the third step is the first with more
    assert abs(at_once[2] - one[2]) > 1e-4 and abs(fading[3] - one[3]) > 1e-5
    # Each checkpoint is evaluated as its last step was computed.
    best = json.loads((tmp_path / "fading/best.json").read_text())
    assert best["measured"]["layers"] == 3
    # After the fade it is the model of all layers, to the bit.
    (tmp_path / "fading/model.ckpt-6.json").unlink()
    assert command(*job("whole", do_train=False,
                        init_checkpoint=tmp_path / "fading/model.ckpt-6")) == 0
    found = json.loads((tmp_path / "whole/eval_results.json").read_text())
    assert found["loss"] == losses(tmp_path / "fading", "eval")[-1]


@pytest.mark.slow
def test_an_evaluation_within_a_fade_is_of_the_share_of_its_step(job, tmp_path, capsys):
    fading = dict(depth_schedule="1:2", depth_fade_steps=4, num_train_steps=8)
    assert command(*job(save_checkpoints_steps=1, keep_checkpoint_max=0, **fading)) == 0
    said = capsys.readouterr().err
    assert "step 2: 3 layers; those above 1 fade in up to step 6" in said
    assert "step 6: 3 layers\n" in said
    seen = losses(tmp_path / "out", "eval")
    run = RunConfig("", depth_schedule=((1, 2),), depth_fade_steps=4)
    depths = [run.depth_before(step) for step in range(1, 9)]
    shares = [depth.share for depth in depths[2:6]]
    assert depths[:2] == [1, 1] and depths[6:] == [None, None] and shares == [0, 0.25, 0.5, 0.75]
    for step in (3, 5):
        prefix = tmp_path / f"out/model.ckpt-{step}"
        again = dict(do_train=False, output_dir=tmp_path / f"eval-{step}", init_checkpoint=prefix)
        assert command(*job(**fading | again)) == 0
        found = json.loads((tmp_path / f"eval-{step}/eval_results.json").read_text())
        assert found["loss"] == pytest.approx(seen[step - 1], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("how", [
    [],
    ["--use_xla"],
    ["--num_virtual_devices=2", "--gradient_accumulation_steps=2", "--remat"],
    pytest.param(["--engine=jax"], marks=NEEDS_JAX),
    pytest.param(["--engine=jax", "--num_virtual_devices=2", "--remat"], marks=NEEDS_JAX),
], ids=lambda flags: "-".join(f.strip("-") for f in flags) or "plain")
def test_a_fade_is_resumed_to_the_bit_and_the_same_however_it_is_computed(how, job, tmp_path):
    fading = dict(depth_schedule="1:1,2:4", depth_fade_steps=2, num_train_steps=8, max_eval_steps=0)

    def do(out, step, *flags):
        done = run("albert.run_pretraining", *job(out, until_step=step, **fading), *flags)
        assert done.returncode == 0, done.stderr

    do("first", 1)
    # Each engine draws weights of its own.
    fading["init_checkpoint"] = tmp_path / "first/model.ckpt-1"
    do("whole", 6, *how)
    for step in (2, 5, 6):  # within the first fade, and within the second
        do("parts", step, *how)
    assert_same(tmp_path)
    do("plain", 6)
    ours, theirs = (losses(tmp_path / out, "train") for out in ("whole", "plain"))
    assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("layout", ["plain", "packed"])
def test_a_layer_that_counts_in_part_lies_between(layout):
    """The states after a block that counts with a share are that far on the way to the block's."""
    import keras

    from albert.modeling import AlbertConfig, AlbertModel, EncoderOptions
    from albert.records import packing

    config = AlbertConfig(**SIZES | {"num_hidden_layers": 2, "initializer_range": 0.3})
    rng = np.random.default_rng(0)
    batch = {
        "input_ids": rng.integers(5, 30, (3, 8)).astype("int32"),
        "input_mask": np.ones((3, 8), "int32"), "segment_ids": np.zeros((3, 8), "int32"),
    }
    batch["input_mask"][:, 3:] = 0
    if layout == "packed":
        batch = packing.pack_rows(batch, 1, [8], 1)
    model = AlbertModel(config, encoder_options=EncoderOptions(needed_outputs_only=False))

    def states(depth):
        found = model(batch, depth=depth, output_hidden_states=True)["encoder_outputs"]
        return [keras.ops.convert_to_numpy(state) for state in found]

    one, two = states(2)
    for share in (0.0, 0.25, 1.0):
        before, after = states(Growing(2, 1, keras.ops.convert_to_tensor(share)))
        np.testing.assert_array_equal(before, one)
        np.testing.assert_allclose(after, one + share * (two - one), rtol=0, atol=1e-6)
    assert np.abs(two - one).max() > 0.1
    # Where only [CLS] is computed, it is the same.
    short = AlbertModel(config, encoder_options=EncoderOptions(needed_outputs_only=True))
    for mine, theirs in zip(short.weights, model.weights, strict=True):
        mine.assign(theirs)
    pooled = [m(batch, depth=Growing(2, 1, 0.25))["pooled_output"] for m in (model, short)]
    np.testing.assert_allclose(*map(keras.ops.convert_to_numpy, pooled), rtol=0, atol=1e-6)

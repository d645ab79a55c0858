"""The figures printed for an architecture match the built model and the paper."""

import collections
import dataclasses
import json
import math
import re
import shlex

import pytest
from helpers import REPO, SIZES, assert_one_clear_line, run_here, write_config

from albert import model_info
from albert.cli import text_plan
from albert.config import AlbertConfig
from albert.model import costs
from albert.model.costs import ACTIVATION_FACTORS, GIB, USABLE_MEMORY, Device, Workload


def config_of(**changes) -> AlbertConfig:
    return AlbertConfig(**SIZES | changes)


def released(name: str) -> AlbertConfig:
    return AlbertConfig.from_json_file(str(REPO / f"configs/albert_{name}.json"))


# --- Parameters ---

# Names of checkpoint variables by component, independent of our arithmetic.
OWNERS = {
    r"embeddings/word_": "word_embeddings", r"embeddings/token_type": "segment_embeddings",
    r"embeddings/position": "position_embeddings",
    r"embeddings/LayerNorm": "embedding_layer_norm", r"mapping_in": "embedding_projection",
    r"attention_1/": "attention", r"inner_group_\d+/LayerNorm/": "attention_layer_norm",
    r"ffn_1/": "feed_forward", r"inner_group_\d+/LayerNorm_1/": "feed_forward_layer_norm",
    r"pooler": "pooler", r"cls/predictions": "masked_lm",
    r"cls/seq_relationship": "sentence_order",
}


@pytest.mark.parametrize(("sharing", "changes"), [
    ("all", {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2}),
    ("attention", {"num_hidden_layers": 3}),
    ("ffn", {"num_hidden_layers": 4, "num_hidden_groups": 4, "embedding_size": 16}),
    ("none", {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2}),
])
def test_the_model_that_is_built_has_the_counts(sharing, changes):
    from albert import modeling

    config = config_of(parameter_sharing=sharing, **changes)
    built = collections.Counter(dict.fromkeys(costs.parameters_by_part(config), 0))
    for name, shape in modeling.parameter_shapes(modeling.AlbertForPreTraining(config)).items():
        [owner] = [part for pattern, part in OWNERS.items() if re.search(pattern, name)]
        built[owner] += math.prod(shape)
    assert dict(built) == costs.parameters_by_part(config)
    assert built.total() == costs.parameter_count(config, heads=True)


# The paper counts a model whose layers share something with its pooler, and one whose layers
# share nothing (BERT is one with E = H) without; never the heads. Tables 1, 3 and 4, millions.
PAPER = [
    (768, 768, 12, "none", 108), (1024, 1024, 24, "none", 334),  # BERT base and large
    (768, 128, 12, "all", 12), (1024, 128, 24, "all", 18),
    (768, 64, 12, "none", 87), (768, 128, 12, "none", 89), (768, 256, 12, "none", 93),
    (768, 64, 12, "all", 10), (768, 256, 12, "all", 16), (768, 768, 12, "all", 31),
    (768, 768, 12, "attention", 83), (768, 768, 12, "ffn", 57),
    (768, 128, 12, "attention", 64), (768, 128, 12, "ffn", 38),
    (1024, 128, 48, "all", 18),  # table 11
]
# Tables 1 and 12 with positions of the hidden width. The released models have positions of width
# E: 58.7 million for xlarge. The 235 (table) or 233 (text) million of xxlarge follow from neither.
PAPER_WIDE = [(768, 12, 12), (1024, 24, 18), (2048, 24, 60), (4096, 3, 225), (6144, 3, 499)]


def test_the_papers_counts_to_the_printed_digit():
    def count(hidden, embedding, layers, sharing) -> int:
        return costs.parameter_count(AlbertConfig(
            30000, embedding, hidden, layers, num_attention_heads=hidden // 64,
            intermediate_size=4 * hidden, parameter_sharing=sharing,
        ), with_pooler=sharing != "none")

    for *shape, millions in PAPER:
        assert round(count(*shape) / 1e6) == millions, shape
    for hidden, layers, millions in PAPER_WIDE:
        wide = count(hidden, 128, layers, "all") + 512 * (hidden - 128)
        assert round(wide / 1e6) == millions, hidden


def test_an_optimizer_keeps_as_many_slots_as_the_memory_counts():
    from albert import modeling, optimization

    model = modeling.AlbertForPreTraining(config_of())
    for name in costs.OPTIMIZERS:
        optimizer = optimization.create_optimizer(optimization.OptimizerConfig(name, 0.1, 10))
        optimizer.build(model.trainable_weights)
        slots = optimizer.named_slots(modeling.named_weights(model)).values()
        counted = costs.memory_bytes(config_of(), Workload(optimizer=name, max_seq_length=16))
        assert counted["optimizer_slots"] == sum(math.prod(slot.shape) * 4 for slot in slots)
        assert counted["weights"] == counted["gradients"] == 4 * model.count_params()


# --- Computation ---

# Of the released models, unshared: 125,000 steps of 4096 x 512 tokens times the parameters. A public
# summary of the paper prints 2.333e19 and 6.388e20: those of 89 and 2437 million.
COSTS = {"base": 2.345e19, "large": 8.048e19, "xlarge": 3.188e20, "xxlarge": 6.389e20}


def product_flops(graph) -> int:
    """Returns two FLOPs per multiply-add of the matrix products in a traced graph."""
    total = 0
    for operation in graph.get_operations():
        assert operation.type not in ("Einsum", "BatchMatMul", "BatchMatMulV3")
        if operation.type in ("MatMul", "BatchMatMulV2"):
            left, result = operation.inputs[0].shape, operation.outputs[0].shape
            turned = "transpose_a" if operation.type == "MatMul" else "adj_x"
            total += 2 * math.prod(result) * left[-2 if operation.get_attr(turned) else -1]
    return total


@pytest.mark.parametrize(("changes", "remat"), [
    ({"num_hidden_layers": 3, "inner_group_num": 2}, True),
    ({"embedding_size": 16, "vocab_size": 70}, False),
], ids=["inner groups, remat", "E = H"])
def test_flops_are_those_of_the_traced_model(changes, remat):
    import tensorflow as tf

    from albert import modeling

    config, rows = config_of(**changes), 3
    workload = Workload(max_seq_length=12, max_predictions_per_seq=5, remat=remat)
    options = modeling.EncoderOptions(remat=remat)
    model = modeling.AlbertForPreTraining(config, encoder_options=options)
    lengths = {"input_ids": 12, "masked_lm_positions": 5}
    inputs = {name: tf.TensorSpec([rows, n], tf.int32) for name, n in lengths.items()}

    def loss(batch):
        outputs = model(batch, training=False)
        return tf.nn.l2_loss(outputs["prediction_logits"]) + tf.nn.l2_loss(outputs["sop_logits"])

    def gradients(batch):
        with tf.GradientTape() as tape:
            value = loss(batch)
        return tape.gradient(value, [w.value for w in model.trainable_weights])

    for function, count in ((loss, costs.forward_flops), (gradients, costs.training_flops)):
        traced = product_flops(tf.function(function).get_concrete_function(inputs).graph)
        assert count(config, workload) * rows * 12 == pytest.approx(traced, rel=1e-12)


# --- Memory and plans ---


def test_activations_by_hand():
    def block(config, precision) -> int:
        """Returns the activation memory per token that a second layer adds."""
        run = Workload(train_batch_size=1, max_seq_length=12, mixed_precision=precision)
        one = dataclasses.replace(config, num_hidden_layers=1)
        return (costs.activation_bytes(config, run) - costs.activation_bytes(one, run)) // 12

    # H 16, I 24, N 2, S 12, float32, both dropouts: (128 + 48) 4 + 32 + 24 (4 + 5).
    assert block(config_of(), "float32") == 704 + 32 + 216
    assert block(config_of().with_dropout(0.0), "float32") == 704 + 96
    # arXiv 2205.05198: 34 H + 5 N S of a half-precision block with I = 4 H; and our softmax.
    assert block(config_of(intermediate_size=64), "bfloat16") == 34 * 16 + 5 * 24 + 4 * 24
    # 4 rows at once; two blocks of 952 and 2 E w = 64 a token; (16 + 16) 4 + 40 (4 + 4) a mask.
    workload = dataclasses.replace(PLANNED, gradient_accumulation_steps=3)
    assert costs.activation_bytes(config_of(), workload) == 4 * (12 * 1968 + 3 * 448)
    # Recomputed: the inputs of the two blocks, 2 H w = 128 a token, and one block at a time.
    remat = dataclasses.replace(workload, remat=True)
    assert costs.activation_bytes(config_of(), remat) == 4 * (12 * (128 + 952 + 64) + 3 * 448)
    counted = costs.memory_bytes(config_of(), workload)
    assert counted["gradients"] == 2 * counted["weights"]  # of a micro-batch, and their sum


PLANNED = Workload(num_train_steps=10, train_batch_size=24, max_seq_length=12,
                   max_predictions_per_seq=3, num_devices=2)
# Of config_of(): a row takes 12 x 1,968 + 3 x 448 bytes (by hand above) times the factor, four or
# five sets of 4-byte values of 3,082 parameters stay.
ROW, SET = 24_960 * ACTIVATION_FACTORS[0], 4 * 3_082


def plan_of(memory: float, config=None, workload=PLANNED) -> dict:
    """A plan for devices with `memory` usable bytes that reach 1e8 FLOPs a second."""
    device = Device("", (memory / USABLE_MEMORY + 1) / GIB, 1e-3, 1e-3, 0.1)
    return costs.make_plan(config or config_of(), workload, device)


def parts(plan: dict) -> tuple:
    return tuple(plan[n] for n in ("micro_batch", "gradient_accumulation_steps", "memory_bytes"))


def test_the_largest_equal_part_that_fits_is_planned():
    # 12 rows on each of two devices: parts of 12, 6, 4, 3, 2 and 1, never 5.
    whole = plan_of(12 * ROW + 4 * SET)
    assert whole["fits"] and parts(whole) == (12, 1, 4 * SET + 12 * ROW)
    # With a few bytes less, gradients are held twice and the rows are halved.
    assert parts(plan_of(12 * ROW + 4 * SET - 4)) == (6, 2, 6 * ROW + 5 * SET)
    assert parts(plan_of(5 * ROW + 5 * SET))[:2] == (4, 3)
    # Requested accumulation is a minimum.
    asked = dataclasses.replace(PLANNED, gradient_accumulation_steps=3)
    assert parts(plan_of(GIB, workload=asked))[:2] == (4, 3)
    # What doesn't fit; as many parameters as config_of().
    row = round((12 * (20 * 952 + 64) + 3 * 448) * ACTIVATION_FACTORS[0])
    plan = plan_of(row + 5 * SET - 4, config_of(num_hidden_layers=20))
    assert (plan["fits"], plan["micro_batch"], plan["memory_bytes"]) == (False, 1, row + 5 * SET)


def test_days_are_flops_over_speed():
    # 10 steps of 24 x 12 tokens on two devices that reach 1e8 a second. Forward, of a token: two
    # blocks of 2 (4 H^2 + 2 H I) + 4 S H, 2 E H, and of a row 3 x 2 E (H + V) + 2 H^2 + 4 H.
    forward = 2 * (2 * (1024 + 768) + 768) + 256 + (3 * 896 + 512 + 64) / 12
    assert plan_of(GIB)["days"] == pytest.approx(3 * forward * 10 * 24 * 12 / 2e8 / 86_400)
    # The utilization of a TPU is what the paper's own run of 32 hours implies.
    flops = costs.training_flops(released("xxlarge_v1"), Workload()) * 125_000 * 4096 * 512
    core = costs.DEVICES["tpu-v3"]
    reached = flops / (32 * 3600) / (512 * 2 * 1e12 * core.half_tflops)
    assert core.utilization < reached < core.utilization + 0.05


# --- The command ---


@pytest.fixture
def info(capsys, monkeypatch):
    """Function that runs the command with flags, in the repository, and returns its output."""
    monkeypatch.chdir(REPO)
    return lambda *flags: (run_here(model_info, *flags), capsys.readouterr().out)[1]


def columns(stdout: str, label: str) -> list[str]:
    line = next(line for line in stdout.splitlines() if line.strip().startswith(label))
    return re.split(r"\s{2,}", line.strip())[1:]


def quoted(text: str) -> list[str]:
    """The lines of output in a part of a page."""
    return [line[4:] for line in text.splitlines() if line.startswith("    ")]


def test_the_released_sizes_side_by_side_as_published_and_as_the_page_shows(info):
    page = (REPO / "docs/guides/released_models.md").read_text(encoding="utf-8")
    out = info("--albert_config_file=configs/albert_*_v1.json")
    assert out.splitlines()[0].split() == [f"albert_{size}_v1" for size in COSTS]
    assert columns(out, "backbone  ") == ["11,683,584", "17,683,968", "58,724,864", "222,595,584"]
    assert list(map(float, columns(out, "normalized cost"))) == list(COSTS.values())
    assert "125,000 steps of 4,096 x 512 tokens" in out
    section = page.split("## What a model costs")[1].split("\n## ")[0]
    shown = re.findall(r"```bash\n(.*?)```\n(.*?)(?=```bash|\Z)", section, re.DOTALL)
    assert len(shown) == 2
    for command, excerpt in shown:
        out = info(*shlex.split(command.replace("\\\n", " "))[3:])
        assert len(quoted(excerpt)) == 5 and set(quoted(excerpt)) <= set(out.splitlines())


def test_json_holds_the_same_for_programs(info, tmp_path):
    path = write_config(tmp_path, parameter_sharing="ffn", num_hidden_layers=3)
    printed = json.loads(info(
        f"--albert_config_file={path}", "--format=json", "--max_seq_length=12",
        "--train_batch_size=8", "--num_train_steps=5", "--optimizer=adamw",
    ))
    [model] = printed["models"]
    assert printed["workload"]["optimizer"] == "adamw"
    total = costs.parameter_count(AlbertConfig.from_json_file(path), heads=True)
    parameters = {"total": total, "attention": 3 * 1088, "feed_forward": 808}
    assert parameters.items() <= model["parameters"].items()
    assert model["architecture"]["attention_weight_sets"] == 3
    assert model["cost"]["tokens"] == 5 * 8 * 12
    memory = model["memory_bytes"]
    assert memory.pop("total") == sum(memory.values())


def plan_flags(folder, *flags: str) -> list[str]:
    return [
        f"--albert_config_file={write_config(folder)}", "--plan", "--max_seq_length=12",
        "--max_predictions_per_seq=3", "--num_replicas=2", "--train_batch_size=24", *flags,
    ]


def test_a_plan_names_its_assumptions_and_takes_others(info, tmp_path):
    out = info(*plan_flags(tmp_path, "--device=a100", "--mixed_precision=bfloat16"))
    assert (columns(out, "micro batch"), columns(out, "gradient accum")) == (["12"], ["1"])
    for words in ("A100", "312 TFLOP/s", "35 % are reached", "90 % of it usable"):
        assert words in out, words
    # A GiB is 2^30 bytes, of which nine tenths.
    memory = (6 * ROW + 5 * SET + 1) / 0.9 / GIB
    others = "--device=cpu", f"--device_memory_gib={memory!r}", "--utilization=0.125"
    facts = json.loads(info(*plan_flags(tmp_path, *others, "--format=json")))
    plan, flops = (facts["models"][0][part] for part in ("plan", "cost"))
    assert parts(plan) == (6, 2, 6 * ROW + 5 * SET)
    days = flops["training_flops"] / (2 * 1.536e12 * 0.125 * 86_400)
    assert plan["days"] == pytest.approx(days) and facts["device"]["utilization"] == 0.125
    out = info(*plan_flags(tmp_path, "--device_memory_gib=0.00001"))
    assert columns(out, "fits") == ["no"]


def test_the_guides_sizes_and_its_choice_of_one_are_those_that_are_printed(info):
    page = (REPO / "docs/guides/pretrain.md").read_text(encoding="utf-8").split("## Which size")[1]
    table = dict(re.findall(r"^\| `(.+?)` \| (.+?) \|$", page, re.M))
    models = dict(zip(table, json.loads(info(
        f"--albert_config_file={','.join(table)}", "--max_seq_length=128",
        "--max_predictions_per_seq=20", "--format=json",
    ))["models"], strict=True))
    cost = {name: model["cost"]["training_flops_per_token"] for name, model in models.items()}
    assert len(table) == 6
    for config, cells in table.items():
        shape, vocabulary, parameters, flops = cells.split(" | ")
        sizes = models[config]["architecture"]
        assert shape == f"{sizes['num_hidden_layers']} x {sizes['hidden_size']}"
        assert vocabulary == f"{sizes['vocab_size']:,}"
        assert parameters == f"{models[config]['parameters']['total']:,}"
        assert float(flops) == pytest.approx(cost[config] / cost["base_v2"], rel=0.05)
    # The rule is the one by which pretrain_from_text chooses.
    budgets = [1e11 * 3600 * hours for hours in (1, 10, 100)]
    budgets += [3e14 * 36_000 * devices for devices in (1, 8)]
    rows = re.findall(r"^\| (\d+) ([MG])B \| (.+) \|$", page, re.M)
    assert len(rows) == 4
    for number, unit, cells in rows:
        tokens = int(number) * {"M": 1e6, "G": 1e9}[unit] / 4.5
        for budget, chosen in zip(budgets, cells.split(" | "), strict=True):
            name = text_plan.choose_size(tokens, budget).name
            assert chosen == name.removesuffix("_v2"), (number, unit)


REFUSED = [
    (["--plan", "--device=tpu-v3", "--mixed_precision=float16"], "--mixed_precision=float16"),
    (["--plan", "--utilization=1.5"], "--utilization=1.5"),
    (["--plan", "--device_memory_gib=0"], "--device_memory_gib=0"),
    (["--plan", "--num_replicas=5"], "--train_batch_size=24"),
    (["--plan", "--device=abacus"], "abacus"),
    (["--max_seq_length=17"], "max_position_embeddings 16"),
    (["--train_batch_size=0"], "--train_batch_size=0"),
    (["--num_devices=5"], "--train_batch_size=24"),
    (["--albert_config_file=absent.json"], "absent.json"),
    (["--albert_config_file=base_v3"], "base_v3. Architectures"),
    (["--albert_config_file=,"], "--albert_config_file"),
    (["--optimizer=sgd"], "optimizer"),
]


def test_what_cannot_be_is_one_clear_line(tmp_path, capsys):
    usual = [f"--albert_config_file={write_config(tmp_path)}", "--max_seq_length=12",
             "--train_batch_size=24"]
    for flags, named in REFUSED:
        assert run_here(model_info, *usual, *flags) == 2, flags
        printed = capsys.readouterr()
        assert not printed.out and named in assert_one_clear_line(printed.err)

"""What is printed of an architecture is what is built of it, and what the paper says of it."""

import collections
import dataclasses
import json
import math
import re
import shlex
import subprocess
import sys

import pytest
from helpers import REPO, SIZES, assert_one_clear_line, run, write_config

from albert.config import AlbertConfig
from albert.model import costs
from albert.model.costs import ACTIVATION_FACTORS, GIB, USABLE_MEMORY, Device, Workload

SHARING = ("all", "attention", "ffn", "none")


def config_of(**changes) -> AlbertConfig:
    return AlbertConfig(**SIZES | changes)


# --- Parameters ---


def test_every_part_by_hand():
    # V 40, E 8, H 16, I 24, two layers that share everything.
    assert costs.parameters_by_part(config_of()) == {
        "word_embeddings": 320, "segment_embeddings": 16, "position_embeddings": 128,
        "embedding_layer_norm": 16, "embedding_projection": 144, "attention": 1088,
        "attention_layer_norm": 32, "feed_forward": 408 + 400, "feed_forward_layer_norm": 32,
        "pooler": 272, "masked_lm": 136 + 16 + 40, "sentence_order": 34,
    }


# Names of checkpoint variables, told apart without our arithmetic.
OWNERS = [
    (r"embeddings/word_", "word_embeddings"), (r"embeddings/token_type", "segment_embeddings"),
    (r"embeddings/position", "position_embeddings"),
    (r"embeddings/LayerNorm", "embedding_layer_norm"), (r"mapping_in", "embedding_projection"),
    (r"attention_1/", "attention"), (r"inner_group_\d+/LayerNorm/", "attention_layer_norm"),
    (r"ffn_1/", "feed_forward"), (r"inner_group_\d+/LayerNorm_1/", "feed_forward_layer_norm"),
    (r"pooler", "pooler"), (r"cls/predictions", "masked_lm"),
    (r"cls/seq_relationship", "sentence_order"),
]


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 3},
        {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2},
        {"num_hidden_layers": 4, "num_hidden_groups": 4, "embedding_size": 16},
    ],
    ids=["one group", "groups and inner groups", "E = H"],
)
def test_the_model_that_is_built_has_the_counts(changes, sharing):
    from albert import modeling

    config = config_of(parameter_sharing=sharing, **changes)
    built = collections.Counter(dict.fromkeys(costs.parameters_by_part(config), 0))
    for name, shape in modeling.parameter_shapes(modeling.AlbertForPreTraining(config)).items():
        owners = [part for pattern, part in OWNERS if re.search(pattern, name)]
        assert len(owners) == 1, name
        built[owners[0]] += math.prod(shape)
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


def of_paper(hidden, embedding, layers, sharing="all") -> AlbertConfig:
    return AlbertConfig(
        vocab_size=30000, embedding_size=embedding, hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, intermediate_size=4 * hidden, parameter_sharing=sharing,
    )


@pytest.mark.parametrize(("hidden", "embedding", "layers", "sharing", "millions"), PAPER)
def test_the_papers_counts_to_the_printed_digit(hidden, embedding, layers, sharing, millions):
    config = of_paper(hidden, embedding, layers, sharing)
    count = costs.parameter_count(config, with_pooler=sharing != "none")
    assert round(count / 1e6) == millions


@pytest.mark.parametrize(
    ("hidden", "layers", "millions"),
    [(768, 12, 12), (1024, 24, 18), (2048, 24, 60), (4096, 3, 225), (6144, 3, 499)],
)
def test_the_papers_wide_models_have_positions_of_the_hidden_width(hidden, layers, millions):
    # Tables 1 and 12. The released ones have positions of width E: 58.7 million for xlarge.
    # The 235 (table) or 233 (text) million of xxlarge follow from neither.
    config = of_paper(hidden, 128, layers)
    count = costs.parameter_count(config) + 512 * (hidden - 128)
    assert round(count / 1e6) == millions


@pytest.mark.parametrize("name", costs.OPTIMIZERS)
def test_an_optimizer_keeps_as_many_slots_as_are_told(name):
    from albert import modeling, optimization

    model = modeling.AlbertForPreTraining(config_of())
    optimizer = optimization.create_optimizer(optimization.OptimizerConfig(
        name=name, learning_rate=0.1, num_train_steps=10, num_warmup_steps=0
    ))
    optimizer.build(model.trainable_weights)
    held = sum(
        math.prod(slot.shape) * 4
        for slot in optimizer.named_slots(modeling.named_weights(model)).values()
    )
    told = costs.memory_bytes(config_of(), Workload(optimizer=name, max_seq_length=16))
    assert told["optimizer_slots"] == held
    assert told["weights"] == told["gradients"] == 4 * model.count_params()


# --- Computation ---

# Layers and widths of the released models with 125,000 steps of 4096 x 512 tokens, as a public
# summary of the paper prints them: millions of parameters, cost.
PUBLISHED = {"base": (89, 2.333e19), "large": (307, 8.048e19), "xlarge": (1216, 3.188e20),
             "xxlarge": (2437, 6.388e20)}
UNROUNDED = {"base": 2.345e19, "large": 8.048e19, "xlarge": 3.188e20, "xxlarge": 6.389e20}


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_costs_follow_from_parameters_in_whole_millions(size):
    config = AlbertConfig.from_json_file(str(REPO / f"configs/albert_{size}_v1.json"))
    millions, cost = PUBLISHED[size]
    parameters = costs.compute_parameters(config)
    assert round(parameters / 1e6) == millions
    tokens = 125_000 * 4096 * 512
    assert float(f"{millions * 10**6 * tokens:.3e}") == cost
    assert float(f"{parameters * tokens:.3e}") == UNROUNDED[size]


def product_flops(graph) -> int:
    """Returns two FLOPs for each multiply-add of the matrix products in a traced graph."""
    total = 0
    for operation in graph.get_operations():
        if operation.type not in ("MatMul", "BatchMatMulV2"):
            assert operation.type not in ("Einsum", "BatchMatMul", "BatchMatMulV3")
            continue
        left, result = operation.inputs[0].shape, operation.outputs[0].shape
        turned = "transpose_a" if operation.type == "MatMul" else "adj_x"
        inner = left[-2] if operation.get_attr(turned) else left[-1]
        total += 2 * math.prod(result) * inner
    return total


@pytest.mark.parametrize("remat", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    "changes",
    [{"num_hidden_layers": 3, "inner_group_num": 2}, {"embedding_size": 16, "vocab_size": 70}],
    ids=["inner groups", "E = H"],
)
def test_flops_are_those_of_the_traced_model(changes, remat):
    import tensorflow as tf

    from albert import modeling

    config, rows = config_of(**changes), 3
    workload = Workload(max_seq_length=12, max_predictions_per_seq=5, remat=remat)
    options = modeling.EncoderOptions(remat=remat)
    model = modeling.AlbertForPreTraining(config, encoder_options=options)
    inputs = {
        "input_ids": tf.TensorSpec([rows, 12], tf.int32),
        "masked_lm_positions": tf.TensorSpec([rows, 5], tf.int32),
    }

    def loss(batch):
        outputs = model(batch, training=False)
        logits = outputs["prediction_logits"], outputs["sop_logits"]
        return tf.add_n([tf.reduce_sum(tf.square(x)) for x in logits])

    def gradients(batch):
        with tf.GradientTape() as tape:
            value = loss(batch)
        return tape.gradient(value, [w.value for w in model.trainable_weights])

    tokens = rows * 12
    forward = product_flops(tf.function(loss).get_concrete_function(inputs).graph)
    both = product_flops(tf.function(gradients).get_concrete_function(inputs).graph)
    assert costs.forward_flops(config, workload) * tokens == pytest.approx(forward, rel=1e-12)
    assert costs.training_flops(config, workload) * tokens == pytest.approx(both, rel=1e-12)


def test_recomputation_costs_the_blocks_once_more_and_saves_their_activations():
    config = AlbertConfig.from_json_file(str(REPO / "configs/albert_base_v2.json"))
    plain, remat = Workload(), Workload(remat=True)
    # 12 (8 H^2 + 4 H I + 4 S H), H = 768, I = 3072, S = 512.
    blocks = 12 * (4_718_592 + 9_437_184 + 1_572_864)
    assert costs.block_flops(config, 512) == blocks
    more = costs.training_flops(config, remat) - costs.training_flops(config, plain)
    assert more == pytest.approx(blocks)
    # Of a sequence, w = 4, no dropout: a block keeps (8 H + 2 I) 4 + 12 S 4 = 73,728 bytes a token,
    # the embeddings 2 E 4, a prediction (H + 2 E) 4 + V 8.
    rest = 512 * 1024 + 20 * 244_096
    one = {"train_batch_size": 1}
    kept = costs.activation_bytes(config, Workload(**one))
    assert kept == 512 * 12 * 73_728 + rest
    kept = costs.activation_bytes(config, Workload(remat=True, **one))
    assert kept == 512 * (12 * 768 * 4 + 73_728) + rest


# --- Memory ---


def test_activations_of_a_block_by_hand():
    def block(config, length, precision) -> int:
        """Returns what a second layer adds to a token's activations."""
        run = Workload(train_batch_size=1, max_seq_length=length, mixed_precision=precision)
        one, two = (
            costs.activation_bytes(dataclasses.replace(config, num_hidden_layers=layers), run)
            for layers in (1, 2)
        )
        return (two - one) // length

    # H 16, I 24, N 2, S 12, float32, both dropouts: (128 + 48) 4 + 32 + 24 (4 + 5).
    assert block(config_of(), 12, "float32") == 704 + 32 + 216
    no_dropout = config_of(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    assert block(no_dropout, 12, "float32") == 704 + 96
    # arXiv 2205.05198: 34 H + 5 N S of a half-precision block with I = 4 H; and our softmax.
    half = config_of(intermediate_size=64)
    assert block(half, 12, "bfloat16") == 34 * 16 + 5 * 24 + 4 * 24


def test_activations_of_a_batch_by_hand():
    workload = Workload(train_batch_size=24, max_seq_length=12, max_predictions_per_seq=3,
                        num_devices=2, gradient_accumulation_steps=3)
    # 4 rows at once; two blocks of 952 and 2 E w = 64 a token; (16 + 16) 4 + 40 (4 + 4) a mask.
    assert costs.activation_bytes(config_of(), workload) == 4 * (12 * 1968 + 3 * 448)
    told = costs.memory_bytes(config_of(), workload)
    assert told["gradients"] == 2 * told["weights"]  # of a part, and their sum


# --- Plans ---


def device(memory: float) -> Device:
    """A device of which so many bytes are usable, and that reaches 1e8 FLOPs a second."""
    return Device("", (memory / USABLE_MEMORY + 1) / GIB, 1e-3, 1e-3, 0.1)


PLANNED = Workload(num_train_steps=10, train_batch_size=24, max_seq_length=12,
                   max_predictions_per_seq=3, num_devices=2)
# Of config_of(): a row takes 12 x 1,968 + 3 x 448 bytes (by hand above) times the factor, four or
# five sets of 4-byte values of 3,082 parameters stay.
ROW, SET = 24_960 * ACTIVATION_FACTORS[0], 4 * 3_082


def micro_batch(plan: dict) -> tuple[int, int]:
    return plan["micro_batch"], plan["gradient_accumulation_steps"]


def test_the_largest_equal_part_that_fits_is_planned():
    # 12 rows on each of two devices: parts of 12, 6, 4, 3, 2 and 1, never 5.
    whole = costs.make_plan(config_of(), PLANNED, device(12 * ROW + 4 * SET))
    assert (whole["fits"], *micro_batch(whole)) == (True, 12, 1)
    assert whole["memory_bytes"] == 4 * SET + 12 * ROW
    # A few bytes less, and gradients are held twice and the rows halved.
    less = costs.make_plan(config_of(), PLANNED, device(12 * ROW + 4 * SET - 4))
    assert micro_batch(less) == (6, 2)
    assert less["memory_bytes"] == 6 * ROW + 5 * SET
    five = costs.make_plan(config_of(), PLANNED, device(5 * ROW + 5 * SET))
    assert micro_batch(five) == (4, 3)


def test_accumulation_that_is_asked_for_is_the_least():
    asked = dataclasses.replace(PLANNED, gradient_accumulation_steps=3)
    plan = costs.make_plan(config_of(), asked, device(GIB))
    assert micro_batch(plan) == (4, 3)


def test_what_does_not_fit_is_said():
    deep = config_of(num_hidden_layers=20)  # the parameters of config_of()
    row = round((12 * (20 * 952 + 64) + 3 * 448) * ACTIVATION_FACTORS[0])
    plan = costs.make_plan(deep, PLANNED, device(row + 5 * SET - 4))
    assert (plan["fits"], plan["micro_batch"], plan["memory_bytes"]) == (False, 1, row + 5 * SET)


def test_days_are_flops_over_speed():
    plan = costs.make_plan(config_of(), PLANNED, device(GIB))
    # 10 steps of 24 x 12 tokens on two devices that reach 1e8 a second. Forward, of a token: two
    # blocks of 2 (4 H^2 + 2 H I) + 4 S H, 2 E H, and of a row 3 x 2 E (H + V) + 2 H^2 + 4 H.
    forward = 2 * (2 * (1024 + 768) + 768) + 256 + (3 * 896 + 512 + 64) / 12
    assert plan["days"] == pytest.approx(3 * forward * 10 * 24 * 12 / 2e8 / 86_400)


def test_the_tpus_utilization_is_what_the_papers_own_run_implies():
    config = AlbertConfig.from_json_file(str(REPO / "configs/albert_xxlarge_v1.json"))
    run_flops = costs.training_flops(config, Workload()) * 125_000 * 4096 * 512
    core = costs.DEVICES["tpu-v3"]
    reached = run_flops / (32 * 3600) / (512 * 2 * 1e12 * core.half_tflops)
    assert core.utilization < reached < core.utilization + 0.05


# --- The command ---


def columns(stdout: str, label: str) -> list[str]:
    line = next(line for line in stdout.splitlines() if line.strip().startswith(label))
    return re.split(r"\s{2,}", line.strip())[1:]


def test_the_released_sizes_side_by_side_as_published():
    result = run("albert.model_info", "--albert_config_file=configs/albert_*_v1.json", cwd=REPO)
    assert result.returncode == 0, result.stderr
    names = result.stdout.splitlines()[0].split()
    assert names == ["albert_base_v1", "albert_large_v1", "albert_xlarge_v1", "albert_xxlarge_v1"]
    assert columns(result.stdout, "backbone  ") == [
        "11,683,584", "17,683,968", "58,724,864", "222,595,584",
    ]
    cost = [float(cell) for cell in columns(result.stdout, "normalized cost")]
    assert cost == list(UNROUNDED.values())
    assert "125,000 steps of 4,096 x 512 tokens" in result.stdout
    page = (REPO / "docs/guides/released_models.md").read_text(encoding="utf-8")
    page = page.split("## What a model costs")[1].split("Nothing is computed")[0]
    shown = [line[4:] for line in page.splitlines() if line.startswith("    ")]
    assert shown[0].split() == names and len(shown) == 5
    assert set(shown) <= set(result.stdout.splitlines())


def test_json_holds_the_same_for_programs(tmp_path):
    path = write_config(tmp_path, parameter_sharing="ffn", num_hidden_layers=3)
    result = run(
        "albert.model_info", f"--albert_config_file={path}", "--format=json",
        "--max_seq_length=12", "--train_batch_size=8", "--num_train_steps=5", "--optimizer=adamw",
    )
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    model, config = told["models"][0], AlbertConfig.from_json_file(path)
    assert told["workload"]["optimizer"] == "adamw"
    assert model["parameters"]["total"] == costs.parameter_count(config, heads=True)
    assert model["parameters"]["attention"] == 3 * 1088  # every layer its own
    assert model["parameters"]["feed_forward"] == 808
    assert model["architecture"]["attention_weight_sets"] == 3
    assert model["cost"]["tokens"] == 5 * 8 * 12
    assert model["memory_bytes"]["total"] == sum(
        size for name, size in model["memory_bytes"].items() if name != "total"
    )


def test_it_answers_without_tensorflow(tmp_path):
    code = (
        "import sys\nfrom albert import model_info\n"
        "try:\n    model_info.cli(sys.argv)\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'tensorflow', 'keras', 'numpy', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, f"--albert_config_file={write_config(tmp_path)}",
         "--max_seq_length=12"],
        cwd=REPO, capture_output=True, text=True, timeout=60,
    )
    assert result.returncode == 0, result.stderr


def test_equal_names_become_paths_and_released_archives_their_folders(tmp_path):
    from albert import model_info

    archives = ["models/base/albert_config.json", "models/large/albert_config.json"]
    assert model_info.names_of(archives) == ["base", "large"]
    assert model_info.names_of(["a/x.json", "b/x.json"]) == ["a/x.json", "b/x.json"]


def test_defaults_are_those_of_the_training_command():
    from albert import model_info, run_pretraining
    from albert.cli import flags

    ours, theirs = (
        flags.to_dict(flags.parse(command.define_flags, ["command"]))
        for command in (model_info, run_pretraining)
    )
    shared = set(ours) & set(theirs)
    assert set(ours) - shared == {
        "format", "num_devices", "num_replicas", "plan", "device", "utilization",
        "device_memory_gib",
    }
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


def planned(tmp_path, *flags: str) -> subprocess.CompletedProcess:
    return run(
        "albert.model_info", f"--albert_config_file={write_config(tmp_path)}", "--plan",
        "--max_seq_length=12", "--max_predictions_per_seq=3", "--num_replicas=2",
        "--train_batch_size=24", *flags,
    )


def test_a_plan_names_its_assumptions_and_takes_others(tmp_path):
    told = planned(tmp_path, "--device=a100", "--mixed_precision=bfloat16").stdout
    assert columns(told, "micro batch") == ["12"]
    assert columns(told, "gradient accumulation") == ["1"]
    for words in ("A100", "312 TFLOP/s", "35 % of them reached", "90 % of it usable"):
        assert words in told, words
    # A GiB is 2^30 bytes, of which nine tenths.
    memory = (6 * ROW + 5 * SET + 1) / 0.9 / GIB
    other = planned(
        tmp_path, "--device=cpu", f"--device_memory_gib={memory!r}", "--utilization=0.125",
        "--format=json",
    )
    assert other.returncode == 0, other.stderr
    facts = json.loads(other.stdout)
    plan = facts["models"][0]["plan"]
    assert micro_batch(plan) == (6, 2)
    assert plan["memory_bytes"] == 6 * ROW + 5 * SET
    flops = facts["models"][0]["cost"]["training_flops"]
    assert plan["days"] == pytest.approx(flops / (2 * 1.536e12 * 0.125 * 86_400))
    assert facts["device"]["utilization"] == 0.125


@pytest.fixture(scope="module")
def sizes():
    """The guide of sizes, and what model_info says of each configuration of its first table."""
    page = (REPO / "docs/guides/pretrain.md").read_text(encoding="utf-8").split("## Which size")[1]
    configs = re.findall(r"^\| `(.+?)` \|", page, re.M)
    models = [
        json.loads(run(
            "albert.model_info", f"--albert_config_file={config}", "--max_seq_length=128",
            "--max_predictions_per_seq=20", "--format=json", cwd=REPO,
        ).stdout)["models"][0]
        for config in configs
    ]
    return page, dict(zip(configs, models, strict=True))


def test_the_guides_sizes_are_those_that_are_printed(sizes):
    page, models = sizes
    table = re.findall(r"^\| `(.+?)` \| (.+?) \|$", page, re.M)
    assert len(table) == 6
    flops = {name: model["cost"]["training_flops_per_token"] for name, model in models.items()}
    for config, cells in table:
        shape, pieces, parameters, cost = cells.split(" | ")
        architecture = models[config]["architecture"]
        assert shape == f"{architecture['num_hidden_layers']} x {architecture['hidden_size']}"
        assert pieces == f"{architecture['vocab_size']:,}"
        assert parameters == f"{models[config]['parameters']['total']:,}"
        assert float(cost) == pytest.approx(flops[config] / flops["base_v2"], rel=0.05)


def test_the_guides_choice_of_a_size_follows_its_rule(sizes):
    page, models = sizes
    costs = {
        re.sub(r"configs/|\.json|_v2", "", name): model["cost"] for name, model in models.items()
    }
    budgets = [1e11 * 3600 * hours for hours in (1, 10, 100)]
    budgets += [3e14 * 36_000 * devices for devices in (1, 8)]
    rows = re.findall(r"^\| (\d+) ([MG])B \| (.+) \|$", page, re.M)
    assert len(rows) == 4
    for number, unit, cells in rows:
        tokens = int(number) * {"M": 1e6, "G": 1e9}[unit] / 4.5
        for budget, chosen in zip(budgets, cells.split(" | "), strict=True):
            fitting = [
                name for name, cost in costs.items()
                if 10 * cost["compute_parameters"]
                <= min(30 * tokens, budget / cost["training_flops_per_token"])
            ]
            assert chosen == (fitting or list(costs))[-1 if fitting else 0], (number, unit)


def test_the_pages_plan_is_the_one_that_is_printed():
    page = (REPO / "docs/guides/released_models.md").read_text(encoding="utf-8")
    section = page.split("`--plan` tells")[1].split("What it assumes")[0]
    command, excerpt = re.search(r"```bash\n(.*?)```\n(.*)", section, re.DOTALL).groups()
    arguments = shlex.split(command.replace("\\\n", " "))[3:]
    told = run("albert.model_info", *arguments, cwd=REPO).stdout.splitlines()
    shown = [line[4:] for line in excerpt.splitlines() if line.startswith("    ")]
    assert len(shown) == 5 and set(shown) <= set(told)


def test_a_plan_that_does_not_fit_says_so(tmp_path):
    told = planned(tmp_path, "--device_memory_gib=0.00001").stdout
    assert columns(told, "fits") == ["no"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--device=tpu-v3", "--mixed_precision=float16"), "--mixed_precision=float16"),
        (("--utilization=1.5",), "--utilization=1.5"),
        (("--device_memory_gib=0",), "--device_memory_gib=0"),
        (("--num_replicas=5",), "--train_batch_size=24"),
        (("--device=abacus",), "abacus"),
    ],
)
def test_a_plan_that_cannot_be_is_one_clear_line(flags, named, tmp_path):
    result = planned(tmp_path, *flags)
    assert result.returncode == 2 and not result.stdout
    assert named in assert_one_clear_line(result.stderr)


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--max_seq_length=17", "max_position_embeddings 16"),
        ("--train_batch_size=0", "--train_batch_size=0"),
        ("--num_devices=3", "--train_batch_size=4096"),
        ("--albert_config_file=absent.json", "absent.json"),
        ("--albert_config_file=,", "--albert_config_file"),
        ("--optimizer=sgd", "optimizer"),
    ],
)
def test_what_cannot_be_is_one_clear_line(flag, named, tmp_path):
    result = run(
        "albert.model_info", f"--albert_config_file={write_config(tmp_path)}",
        "--max_seq_length=16", flag, cwd=tmp_path,
    )
    assert result.returncode == 2 and not result.stdout
    assert named in assert_one_clear_line(result.stderr)

"""scripts/model_info.py and the FLOPs behind `mfu`: the figures are the built model's and the paper's."""

import collections
import json
import math
import re
import shlex

import jobs
import pytest
import tensorflow as tf
from helpers import REPO, SIZES, run_here

from albert import modeling
from albert.cli import text_plan
from albert.config import AlbertConfig
from albert.training import costs

model_info = jobs.script("model_info", "scripts")


def config_of(**changes) -> AlbertConfig:
    return AlbertConfig(**SIZES | changes)


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
    config = config_of(parameter_sharing=sharing, **changes)
    built = collections.Counter(dict.fromkeys(model_info.parameters_by_part(config), 0))
    for name, shape in modeling.parameter_shapes(modeling.AlbertForPreTraining(config)).items():
        [owner] = [part for pattern, part in OWNERS.items() if re.search(pattern, name)]
        built[owner] += math.prod(shape)
    assert dict(built) == model_info.parameters_by_part(config)
    assert built.total() == model_info.parameter_count(config, heads=True)


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
        return model_info.parameter_count(AlbertConfig(
            30000, embedding, hidden, layers, num_attention_heads=hidden // 64,
            intermediate_size=4 * hidden, parameter_sharing=sharing,
        ), with_pooler=sharing != "none")

    for *shape, millions in PAPER:
        assert round(count(*shape) / 1e6) == millions, shape
    for hidden, layers, millions in PAPER_WIDE:
        wide = count(hidden, 128, layers, "all") + 512 * (hidden - 128)
        assert round(wide / 1e6) == millions, hidden


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


def test_flops_are_those_of_the_traced_model():
    config, rows = config_of(embedding_size=16, vocab_size=70, inner_group_num=2, num_hidden_layers=1), 3
    model = modeling.AlbertForPreTraining(config)
    lengths = {"input_ids": 12, "masked_lm_positions": 5}
    inputs = {name: tf.TensorSpec([rows, n], tf.int32) for name, n in lengths.items()}

    def loss(batch):
        outputs = model(batch, training=False)
        return tf.nn.l2_loss(outputs["prediction_logits"]) + tf.nn.l2_loss(outputs["sop_logits"])

    def gradients(batch):
        with tf.GradientTape() as tape:
            value = loss(batch)
        return tape.gradient(value, [w.value for w in model.trainable_weights])

    training = costs.training_flops(config, length=12, predictions=5)
    for function, expected in ((loss, training / 3), (gradients, training)):
        traced = product_flops(tf.function(function).get_concrete_function(inputs).graph)
        assert expected * rows * 12 == pytest.approx(traced, rel=1e-12)


# --- The command ---


@pytest.fixture
def info(capsys, monkeypatch):
    """Function that runs the command with flags, in the repository, and returns its output."""
    monkeypatch.chdir(REPO)
    return lambda *flags: (run_here(model_info, *flags), capsys.readouterr().out)[1]


def columns(stdout: str, label: str) -> list[str]:
    line = next(line for line in stdout.splitlines() if line.strip().startswith(label))
    return re.split(r"\s{2,}", line.strip())[1:]


def test_the_released_sizes_side_by_side_as_published_and_as_the_page_shows(info):
    page = (REPO / "docs/guides/which_model.md").read_text(encoding="utf-8")
    out = info("--albert_config_file=configs/albert_*_v1.json")
    assert out.splitlines()[0].split() == [f"albert_{size}_v1" for size in COSTS]
    assert columns(out, "backbone  ") == ["11,683,584", "17,683,968", "58,724,864", "222,595,584"]
    assert list(map(float, columns(out, "normalized cost"))) == list(COSTS.values())
    assert "125,000 steps of 4,096 x 512 tokens" in out
    section = page.split("## What a model costs")[1].split("\n## ")[0]
    command, shown = re.search(r"```bash\n(.*?)```.*?```text\n(.*?)```", section, re.DOTALL).groups()
    out = info(*shlex.split(command.replace("\\\n", " "))[2:])
    assert len(shown.splitlines()) == 5 and set(shown.splitlines()) <= set(out.splitlines())


def test_the_guides_sizes_and_its_choice_of_one_are_those_that_are_printed(info):
    page = (REPO / "docs/guides/pretrain.md").read_text(encoding="utf-8").split("## Which size")[1]
    table = dict(re.findall(r"^\| `(.+?)` \| (.+?) \|$", page, re.M))
    paths = (name if name.endswith("_v2") else f"configs/{name}.json" for name in table)
    models = dict(zip(table, json.loads(info(
        f"--albert_config_file={','.join(paths)}", "--max_seq_length=128",
        "--max_predictions_per_seq=20", "--format=json",
    ))["models"], strict=True))
    cost = {name: model["training"]["training_flops_per_token"] for name, model in models.items()}
    assert len(table) == 8
    for config, cells in table.items():
        shape, parameters, flops, optimizer = cells.split(" | ")
        sizes = models[config]["architecture"]
        assert shape == f"{sizes['num_hidden_layers']} x {sizes['hidden_size']}"
        assert parameters == f"{models[config]['parameters']['total']:,}"
        assert float(flops) == pytest.approx(cost[config] / cost["base_v2"], rel=0.05)
        size = text_plan.size_of(config)
        assert optimizer.lower() == f"{size.optimizer}, {size.rate}"
    # The rule is the one by which pretrain_from_text chooses.
    budgets = [1e11 * 3600 * hours for hours in (1 / 12, 1, 10, 100)]
    budgets += [3e14 * 36_000 * devices for devices in (1, 8)]
    rows = re.findall(r"^\| (\d+) ([MG])B \| (.+) \|$", page, re.M)
    assert len(rows) == 4
    for number, unit, cells in rows:
        tokens = int(number) * {"M": 1e6, "G": 1e9}[unit] / 4.5
        for budget, chosen in zip(budgets, cells.split(" | "), strict=True):
            name = text_plan.choose_size(tokens, budget).name
            assert chosen == name.removesuffix("_v2"), (number, unit)

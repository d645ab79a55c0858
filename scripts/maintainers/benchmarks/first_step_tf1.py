"""A first training step as the original takes it: python first_step_tf1.py MODEL ROWS.

Its graph, written from its description and not its code, with TensorFlow 1's API
in today's TensorFlow: one layer after another, gradients by `tf.gradients`, and
AdamW; then a session takes one step. The rest of its Estimator's work (reading
records, a checkpoint at step 0) is left out.
"""

import json
import os
import sys
import time

marks = {}
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as our commands set it

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

v1 = tf.compat.v1
v1.disable_eager_execution()
marks["import"] = time.time()

MODEL, ROWS = sys.argv[1:3]
with open(os.path.join(MODEL, "albert_config.json")) as stream:
    CONFIG = json.load(stream)
HIDDEN, HEADS = CONFIG["hidden_size"], CONFIG["num_attention_heads"]
WIDTH = HIDDEN // HEADS


def weight(name, shape):
    return v1.get_variable(
        name, shape, initializer=v1.truncated_normal_initializer(stddev=0.02)
    )


def dense(x, size, name, shape=None, equation="bli,io->blo", activation=None):
    """Maps x [..., I] to [..., size]; `shape` reshapes the weights, which are stored as matrices."""
    with v1.variable_scope(name):
        kernel = weight("kernel", [x.shape[-1], size])
        bias = weight("bias", [size])
    if shape:
        kernel, bias = tf.reshape(kernel, shape[0]), tf.reshape(bias, shape[1])
    y = tf.einsum(equation, x, kernel) + bias
    return activation(y) if activation else y


def gelu(x):
    return x * 0.5 * (1.0 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * tf.pow(x, 3))))


def layer_norm(x, name="LayerNorm"):
    with v1.variable_scope(name):
        beta, gamma = weight("beta", [x.shape[-1]]), weight("gamma", [x.shape[-1]])
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-12)


def attention(hidden, adder):
    heads = {"shape": ([HIDDEN, HEADS, WIDTH], [HEADS, WIDTH]), "equation": "bli,ind->blnd"}
    with v1.variable_scope("self"):
        query, key, value = (dense(hidden, HIDDEN, n, **heads) for n in ("query", "key", "value"))
    query, key, value = (tf.transpose(x, [0, 2, 1, 3]) for x in (query, key, value))
    scores = tf.matmul(query, key, transpose_b=True) * (1.0 / np.sqrt(WIDTH)) + adder
    context = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
    with v1.variable_scope("output"), v1.variable_scope("dense"):
        kernel, bias = weight("kernel", [HIDDEN, HIDDEN]), weight("bias", [HIDDEN])
    kernel = tf.reshape(kernel, [HEADS, WIDTH, HIDDEN])
    return tf.einsum("blnd,ndh->blh", context, kernel) + bias


def block(hidden, adder):
    with v1.variable_scope("attention_1"):
        attended = attention(hidden, adder)
    hidden = layer_norm(attended + hidden)
    with v1.variable_scope("ffn_1"), v1.variable_scope("intermediate"):
        inner = dense(hidden, CONFIG["intermediate_size"], "dense", activation=gelu)
        with v1.variable_scope("output"):
            outer = dense(inner, HIDDEN, "dense")
    return layer_norm(outer + hidden, "LayerNorm_1")


def model(rows):
    """Returns (sequence output [B, L, H], pooled output [B, H], word table [V, E])."""
    size, length = CONFIG["embedding_size"], rows["input_ids"].shape[1]
    with v1.variable_scope("embeddings"):
        table = weight("word_embeddings", [CONFIG["vocab_size"], size])
        segments = weight("token_type_embeddings", [CONFIG["type_vocab_size"], size])
        places = weight("position_embeddings", [CONFIG["max_position_embeddings"], size])
        x = tf.nn.embedding_lookup(table, rows["input_ids"])
        x = x + tf.nn.embedding_lookup(segments, rows["segment_ids"]) + places[:length]
        x = layer_norm(x)
    mask = tf.cast(rows["input_mask"], tf.float32)[:, None, None, :]
    adder = (1.0 - mask) * -10000.0
    with v1.variable_scope("encoder"):
        hidden = dense(x, HIDDEN, "embedding_hidden_mapping_in")
        with v1.variable_scope("transformer", reuse=v1.AUTO_REUSE):
            for _ in range(CONFIG["num_hidden_layers"]):
                with v1.variable_scope("group_0"), v1.variable_scope("inner_group_0"):
                    hidden = block(hidden, adder)
    with v1.variable_scope("pooler"):
        pooled = dense(hidden[:, 0], HIDDEN, "dense", equation="bi,io->bo", activation=tf.tanh)
    return hidden, pooled, table


def total_loss(rows):
    with v1.variable_scope("bert"):
        sequence, pooled, table = model(rows)
    with v1.variable_scope("cls"):
        with v1.variable_scope("predictions"):
            chosen = tf.gather(sequence, rows["masked_lm_positions"], batch_dims=1)
            with v1.variable_scope("transform"):
                chosen = layer_norm(dense(
                    tf.reshape(chosen, [-1, HIDDEN]), CONFIG["embedding_size"], "dense",
                    equation="bi,io->bo", activation=gelu,
                ))
            scores = tf.matmul(chosen, table, transpose_b=True)
            scores = tf.nn.log_softmax(scores + weight("output_bias", [CONFIG["vocab_size"]]))
        with v1.variable_scope("seq_relationship"):
            order = tf.matmul(pooled, weight("output_weights", [2, HIDDEN]), transpose_b=True)
            order = tf.nn.log_softmax(order + weight("output_bias", [2]))
    labels = tf.one_hot(tf.reshape(rows["masked_lm_ids"], [-1]), CONFIG["vocab_size"])
    weights = tf.reshape(rows["masked_lm_weights"], [-1])
    each = -tf.reduce_sum(scores * labels, -1)
    masked = tf.reduce_sum(weights * each) / (tf.reduce_sum(weights) + 1e-5)
    labels = tf.one_hot(rows["next_sentence_labels"][:, 0], 2)
    return masked + tf.reduce_mean(-tf.reduce_sum(order * labels, -1))


def train_op(loss, rate=1e-6, decay=0.01, epsilon=1e-6):
    variables = v1.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    updates = []
    for gradient, variable in zip(gradients, variables, strict=True):
        gradient = tf.convert_to_tensor(gradient)
        name = variable.op.name
        m, v = (
            v1.get_variable(f"{name}/{slot}", variable.shape, trainable=False,
                            initializer=v1.zeros_initializer())
            for slot in ("adam_m", "adam_v")
        )
        new_m = 0.9 * m + 0.1 * gradient
        new_v = 0.999 * v + 0.001 * tf.square(gradient)
        update = new_m / (tf.sqrt(new_v) + epsilon)
        if "LayerNorm" not in name and "bias" not in name:
            update += decay * variable
        updates += [variable.assign(variable - rate * update), m.assign(new_m), v.assign(new_v)]
    return tf.group(*updates)


loss = total_loss({name: tf.constant(value) for name, value in np.load(ROWS).items()})
train = train_op(loss)
trained = {variable.op.name: variable for variable in v1.trainable_variables()}
v1.train.init_from_checkpoint(os.path.join(MODEL, "model.ckpt-best"), trained)
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    marks["build"] = time.time()
    told, _ = session.run([loss, train])
    marks["first step"] = time.time()
print(json.dumps({"marks": marks, "loss": float(told)}), flush=True)

"""The parts of the models, in Keras 3, independent of files and commands.

    encoder     embeddings, and the encoder, whose layers share their weights
    attention   scaled dot-product attention
    layer_loop  applies a layer several times in one loop of the compiled graph
    layers      activations, layer normalization, what follows a matrix product
    islands     chains of elementwise operations, compiled inside of TensorFlow's graph
    dropout     dropout as a function of a seed and the position in a forward pass
    row_layout  sequences with one example each, or with several (packing)
    heads       heads for masked tokens, sentence order and labels
    weights     weights by their names in released checkpoints
    answers     heads and beam search for SQuAD 2.0

Import it before Keras: it rejects Keras's other backends.
"""

from albert import engines

engines.require_backend()

"""The parts of the models, in Keras 3, independent of files and commands.

    encoder          embeddings, and the encoder, whose layers share their weights
    encoder_options  how the encoder computes
    layer_loop       applies a layer several times in one loop of the compiled graph
    islands          chains of elementwise operations, compiled inside of TensorFlow's graph
    attention        scaled dot-product attention
    row_layout       sequences with one example each, or with several (packing)
    layers           activations, layer normalization, what follows a matrix product
    dropout          dropout as a function of a seed and the position in a forward pass
    call_arguments   names, order and ranges of inputs, names of outputs
    keras_methods    Keras's methods for models that take inputs by name
    losses           losses of a call with labels
    heads            heads for masked tokens, sentence order and labels
    answers          heads and beam search for SQuAD 2.0
    backend          rejects unsupported Keras backends
    weight_names     the names of weights in released checkpoints
    costs            FLOPs and compute parameters of an architecture
"""

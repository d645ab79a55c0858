"""The parts of the encoder, in Keras 3, independent of files and commands.

    encoder          embeddings, attention, feed-forward and the encoder that shares them
    encoder_options  how it computes, given at a model's construction
    layer_loop       layers that share their weights, in one loop of TensorFlow's graph
    layer_scan       the same by JAX's scan
    fast_block       a block as TensorFlow computes it on a CPU, with fewer and larger operations
    islands          chains of elementwise operations, compiled inside TensorFlow's graph
    attention        the product of queries and keys, at once or in blocks
    jax_attention    attention by the kernel of a GPU or TPU, on JAX
    row_layout       one example a row, or several packed in one
    layers           activations, layer normalization, dense layers
    dropout          drawn from a seed and the position in a forward pass
    call_arguments   names of inputs and outputs
    losses           the loss of a call with labels
    heads            masked words, sentence order, labels
    answers          SQuAD 2.0's: heads and beam
    backend          refuses Keras backends that this package does not run on
    quantization     saves and restores what Keras's `quantize` changed
    weight_names     every weight under its name in a released checkpoint
    costs            parameters, FLOPs, memory and plans of an architecture
"""

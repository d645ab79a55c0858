"""What the encoder is made of, in Keras 3: no file and no command is known here.

    encoder        embeddings, attention, feed-forward and the encoder that shares them
    layers         activations, layer normalization, dense layers
    dropout        drawn from a seed and the place in a forward pass
    attention      the product of queries and keys, whole or in blocks
    layer_loop     equal layers in one loop of the graph
    row_layout     one example a row, or several packed in one
    heads          masked words, sentence order, SQuAD's beams
    model_size     parameters, operations and bytes of an architecture
    weight_names   every weight under its name in a released checkpoint
    training_plan  how a pretraining run fits on devices
"""

"""Exports models for other runtimes: TF-Hub, serving of texts, LiteRT, ONNX.

    hub_export        the SavedModels of `export_to_tfhub`
    hub_layer         a TF-Hub module as a trainable Keras layer
    text_models       a fine-tuned model as a SavedModel from texts to answers
    text_graph        the tokenizer as a TensorFlow graph
    text_offsets      the same, with the character offsets of tokens
    model_conversion  LiteRT and ONNX files
"""

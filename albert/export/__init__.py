"""Exports models for other runtimes: TF-Hub, serving of texts, LiteRT, ONNX.

    hub_export        the SavedModels of `export_to_tfhub`
    text_models       a fine-tuned model as a SavedModel from texts to answers
    text_graph        the tokenizer as a TensorFlow graph
    model_conversion  LiteRT files, and the comparison of files with models
"""

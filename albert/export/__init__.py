"""A model for other runtimes: TF-Hub and serving modules, text in the graph, LiteRT, ONNX.

    hub_export        the SavedModels behind `export_to_tfhub`
    hub_layer         a TF-Hub module as a Keras layer that trains
    text_models       a fine-tuned model as a SavedModel from texts to answers
    text_graph        the tokenizer as a TensorFlow graph
    text_offsets      the same, with each token's character offsets
    model_conversion  LiteRT and ONNX files
"""

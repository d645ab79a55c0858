"""A model for other runtimes: TF-Hub and serving modules, text in the graph, LiteRT, ONNX.

    hub_export        the SavedModels behind `export_to_tfhub`
    text_answers      a fine-tuned model as a SavedModel from texts to answers
    text_questions    the same of models for questions
    text_module       what these SavedModels share
    text_graph        the tokenizer as a TensorFlow graph
    text_places       the same, with the place of each piece in its text
    hf_conversion     Hugging Face's layout, there and back
    model_conversion  LiteRT and ONNX, written and computed with
    hub_layer         a TF-Hub module as a Keras layer that trains
"""

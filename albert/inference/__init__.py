"""Answers from a model that is opened once.

    compilation  compiles what is computed of a batch, with TensorFlow or JAX
    onnx_file    an exported model, which onnxruntime computes
    arrays       what is computed of its outputs
    session      the model's directory, lines of text, batches of few lengths
    answers      the session that answers texts, for Python
    heads        which predictor a fine-tuned model needs
    predictors   from texts to answers, for each kind of fine-tuned model
    masks        what a model puts in the place of each [MASK]
    vectors      texts as vectors
    scoring      how likely a model finds a sentence
"""

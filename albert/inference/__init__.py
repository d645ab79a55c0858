"""Answers from a model that is opened once.

    answering_session   the session that answers texts, for Python
    session             the opened model, batches of few lengths, and what every predictor does
    fine_tuned          the predictor for a fine-tuned model
    predictors          classifiers of texts and tokens, multiple choice
    question_answering  parts of passages
    mask_filling        the most likely tokens for each [MASK]
    embedding           texts as vectors
    scoring             pseudo-log-likelihoods of sentences
    compiled_call       compiles a model's call with TensorFlow or JAX
    onnx_file           an exported model, run by onnxruntime
"""

"""Answers from a model that is opened once.

    session      an opened model, which people use from Python
    predictors   batches of sequences of similar length; embeddings, the most likely tokens for each [MASK]
    fine_tuned   labels of texts and words, numbers, choices, answers from passages
    precision    what other precisions would gain and change
    onnx_model   writes a model as an ONNX graph
    onnx_graph   the format of ONNX files, which onnxruntime and OpenVINO compute
"""

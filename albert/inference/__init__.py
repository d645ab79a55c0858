"""Answers from a model that is opened once.

    session             an opened model, which people use from Python
    predictor           the base class of predictors: batches of sequences of similar length
    fine_tuned          chooses the predictor for a fine-tuned model
    predictors          classification of texts and tokens, regression, multiple choice
    question_answering  answers from passages
    mask_filling        the most likely tokens for each [MASK]
    embedding           embeddings of texts
    onnx_model          writes a model as an ONNX graph
    onnx_graph          the format of ONNX files
    onnx_file           runs such a file with onnxruntime
"""

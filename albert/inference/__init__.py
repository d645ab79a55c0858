"""Answers from a model that is opened once.

    session     the model's directory, lines of text, batches of few lengths
    predictors  from texts to answers, for each kind of fine-tuned model
"""

"""SQuAD 1.1 and 2.0, except for the commands.

    task       records, losses, statistics and predictions
    questions  SQuAD files, and similar ones
    features   questions and passages as windows
    decode     from logits to answers
    metrics    the official scores
"""

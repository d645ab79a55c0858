"""SQuAD 1.1 and 2.0: all of it but the commands.

    task       questions as examples, the loss, what prediction needs
    alignment  where an answer's characters lie in the tokens
    questions  SQuAD files, and those like them
    features   questions and passages as windows
    records    windows as records
    decode     from logits to answers
    metrics    the official scores
"""

"""How a text is cut into pieces; `albert.tokenization` is the way in. No TensorFlow.

    text           what is done to a text before it is cut
    sentencepiece  pieces of a SentencePiece model (English ALBERT)
    wordpiece      pieces of a vocabulary of words and their parts (Chinese ALBERT)
"""

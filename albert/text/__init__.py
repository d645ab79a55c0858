"""Tokenizers, and readers of text. No TensorFlow.

    cleaning          preprocessing of text before it is tokenized
    spm_model         tokens of a SentencePiece model (English ALBERT)
    wordpiece         tokens of a WordPiece vocabulary (Chinese ALBERT)
    added_tokens      tokens that are matched before a text is tokenized
    encodings         arguments and results of a tokenizer's call
    offsets           positions of tokens in the original text
    vocabulary        training of SentencePiece vocabularies
    text_files        text files as UTF-8 lines, compressed or not
    structured_files  text in JSON lines and Parquet
    corpus_files      files of a corpus, and how they contain documents
    documents         reading of documents, and blocks of documents
    sentences         sentence splitting
"""

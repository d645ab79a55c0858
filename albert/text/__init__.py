"""Tokenizers, and readers of texts. `albert.tokenization` is the way in to the first. No TensorFlow.

    cleaning        what is done to a text before it is tokenized
    sentencepiece   pieces of a SentencePiece model (English ALBERT)
    wordpiece       pieces of a vocabulary of words and their parts (Chinese ALBERT)
    text_files      lines of texts and tables, packed or not, and what is wrong with them
    corpus_files    corpora in whatever form: plain text, JSON lines, Parquet; folders and lists
    sentences       running text to sentences
    documents       text to documents, and documents to blocks
    filters         documents that are left out on request
"""

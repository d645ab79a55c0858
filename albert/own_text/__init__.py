"""From any text to documents of sentences and, on request, a labelled task.

    prose          the English of technical documentation, plain or reStructuredText
    python_docs    Python's own documentation, which every machine has
    text_corpus    texts to documents, and the file that they are written to
    filters        documents that are left out on request
    labelled_task  a task with labels, made of the text itself
"""

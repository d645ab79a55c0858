"""From texts to records of masked tokens and sentence pairs.

    vocabulary           SentencePiece vocabularies with the released layout
    documents            texts to documents of tokenized sentences, block by block
    pair_records         a document to pairs of segments, and a pair to a record
    masking              which tokens are masked, and by what
    pretraining_buckets  documents and pairs shuffled on disk, by workers
    original_draws       the random draws of the original, for records equal to its
    beam_pipeline        the same on Apache Beam
"""

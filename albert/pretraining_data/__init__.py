"""From text to pretraining records.

Documents are gathered into blocks of a few megabytes. A block is tokenized, and its segments become
pairs, which are shuffled, masked and serialized. Readers mix the blocks.

    job              the job: recipe, text, outputs
    held_out         chooses the held-out part of the text
    pairs            documents to segment pairs
    rng              random numbers that depend on a sequence's key alone
    masking          n-gram masking
    features         features of records, with and without masks
    instances        pairs to serialized records
    cooccurrence     token embeddings from the co-occurrence of tokens
    dynamic_masking  masks drawn when records are read
    dataset          batches for other training loops
    pipeline         from text to record files, with the processes of one machine
    beam             makes records with Apache Beam
    report           statistics and warnings
"""

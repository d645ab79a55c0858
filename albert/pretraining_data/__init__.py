"""From text to pretraining records.

Documents are gathered into blocks of a few megabytes. A block is tokenized, and its segments become
pairs. Pairs are shuffled through files, masked, serialized and published.

    job              the job: recipe, text, outputs
    held_out         chooses the held-out part of the text
    pairs            documents to segment pairs
    shuffle          shuffles pairs through files
    rng              random numbers that depend on a sequence's key alone
    masking          n-gram masking
    features         features of records, with and without masks
    instances        shuffled pairs to serialized records
    cooccurrence     token embeddings from the co-occurrence of tokens
    dynamic_masking  masks drawn when records are read
    pipeline         makes records with the processes of one machine
    beam             makes records with Apache Beam
    parts            parts of record files, which are joined at the end
    outputs          publishes record files with their manifests
    report           statistics and warnings
"""

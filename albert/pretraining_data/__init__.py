"""The way of one record from text to file: each step is one module.

A text is read as documents, gathered into blocks of a few megabytes. A block is tokenised, and
its segments become pairs. Pairs are dealt out to buckets, in temporary files; each bucket is
gathered from them and shuffled. Its pairs get masks, become rows of features, and are written.

    held_out        which part of the text is held out
    pairs           a block to pairs of segments
    dealing         pairs dealt out to buckets
    spills          the files in which they lie meanwhile
    buckets         each bucket gathered, shuffled and made into records
    draws           random numbers of a record, which follow from its key
    masking         which tokens of a pair are masked, and by what
    pair_records    the features of a record; masks that are drawn when it is read
    rows            pairs to rows of features
    making          all of it by processes, and the files published
    shares          where the temporary files are, and who of several machines makes what
    journal         what of it is done
    disk_space      whether the disk holds it
    beam_pipeline   all of it by Apache Beam
    beam_steps      what its machines do
    beam_files      files wherever they reach

    recipe          what is asked for: settings, vocabulary, sets of output files
    reports         what is said on the way, and of the records
    report_page     the same as a page with a picture
    original_draws  beside: the original's records, token for token
    vocabulary      before: SentencePiece vocabularies with the released layout
"""

"""The tasks: everything specific to one experiment. Read `task.py` first.

    task                  the interface of every task to the trainer, and sums over a batch
    pretraining           masked words and sentence order
    classification        a label or a number for a text or a pair, or a choice among several
    serving               classifiers and SQuAD 1.1 models as SavedModels
    token_classification  a label for every word
    glue                  GLUE's nine tasks and MNLI's mismatched part
    race                  RACE
    choice_rows           questions with options as other data sets write them
    conll                 words with labels; each sentence is a block of lines
    tables                CSV, TSV, JSON lines and Parquet
    own_file              your own labelled texts in a table
    baselines             a baseline for text classifiers: TF-IDF with logistic regression
    minimal_pairs         pairs of sentences of which one is acceptable
    glue_metrics          GLUE's official metrics
    entity_metrics        precision, recall and F1 of entities
    lines                 lines of the files that tasks read
    fine_tuning_data      the examples of a fine-tuning, their records, tables of predictions
"""

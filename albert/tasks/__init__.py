"""The tasks: everything specific to one experiment. Read `task.py` first.

    task                  the interface of every task to the trainer, and sums over a batch
    pretraining           masked words and sentence order
    teacher               an encoder whose hidden states a model learns in pretraining
    classification        classification and regression of texts and pairs; multiple choice
    token_classification  a label for every word
    glue                  GLUE's nine tasks and MNLI's mismatched part
    squad                 SQuAD 1.1 and 2.0
    squad_answers         from scores to answers, and SQuAD's official scores
    race                  RACE
    conll                 labelled words in CoNLL files
    tables                CSV, TSV, JSON lines and Parquet
    own_file              your own labelled texts in a table
    baselines             a baseline for text classifiers: TF-IDF with logistic regression
    glue_metrics          GLUE's official metrics
    entity_metrics        precision, recall and F1 of entities
    lines                 lines of the files that tasks read
    fine_tuning_data      examples for fine-tuning, their records, tables of predictions
"""

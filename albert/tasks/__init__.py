"""The tasks: everything specific to one experiment. Read `task.py` first.

    task                  the interface of every task to the trainer, and sums over a batch
    pretraining           masked words and sentence order
    teacher               an encoder whose hidden states a model learns in pretraining
    classification        classification and regression of texts and pairs; multiple choice
    glue                  GLUE's nine tasks and MNLI's mismatched part
    squad                 SQuAD 1.1 and 2.0
    squad_answers         from scores to answers, and SQuAD's official scores
    race                  RACE
    words                 labels of words: CoNLL files, entities and their scores
    table                 your own labelled texts: CSV, TSV, JSON lines and Parquet
    baselines             a baseline for text classifiers: TF-IDF with logistic regression
    lines                 lines of the files that tasks read
    fine_tuning_data      examples for fine-tuning and their records
"""

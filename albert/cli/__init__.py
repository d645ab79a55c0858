"""What the commands share. Whatever raises an `errors.UserError` ends a command with one line.

    flags               definitions, ranges, errors, exit codes
    run_flags           devices, steps, checkpoints and masks of every training
    corpus_flags        where a corpus is, and in what format
    remote_paths        flags that name files in cloud storage: downloaded before, uploaded after
    encoder             the encoder that fine-tuning starts from
    earlier_run         what a run must share with the checkpoints that it resumes or evaluates
    table_flags         how run_classifier and predict read a table
    own_texts           --train_file: your own texts in one file, and settings that fit them
    text_plan           model size, vocabulary and steps for a given text and time budget
    text_report         a page on what a model has learned from the text it was pretrained on
    report_page         report.md and report.html
    answering           what the inference commands share: flags, the model, lines
    classifier_report   a page on how good a classifier trained on one file is
"""

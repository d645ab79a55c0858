"""What the commands share. Whatever raises an `errors.UserError` ends a command with one line.

    flags               definitions, ranges, errors, exit codes
    run_flags           devices, steps, checkpoints and masks of every training
    corpus_flags        where a corpus lies, and in what form
    remote_paths        flags that name files in cloud storage: downloaded before, uploaded after
    engine_start        TensorFlow and JAX, imported late, quick and quiet
    fine_tuning_settings  the flags of the fine-tuning commands, and the settings made of them
    encoder             the encoder from which a fine-tuning starts
    fine_tuning         training, evaluation, prediction and export of every fine-tuning
    earlier_run         what a run must share with the checkpoints that it resumes or evaluates
    own_texts           --train_file: your own texts in one file, and settings that fit them
    pretraining_masks   how a pretraining run masks records that hold no masks
    pretraining_start   architecture and vocabulary of a pretraining run
    text_plan           sizes, vocabulary and steps that a text and some hours are worth
    training_speed      tokens per second of a pretraining step on this machine
    text_report         what a model pretrained on a text has learned of it, as a page
    answering           what the commands that answer texts share: flags, the model, lines
    classifier_report   what a classifier of one file can do, as a page
    question_answering  what the three SQuAD commands share
"""

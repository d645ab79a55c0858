"""What the commands share.

    flags               definitions, ranges, start-up, errors, exit codes
    fine_tuning         the flags and the course of every fine-tuning
    question_answering  what the three SQuAD commands share
"""

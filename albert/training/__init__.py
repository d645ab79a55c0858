"""Training and evaluation, for any task.

    trainer           the loop: steps, saves, evaluations, stops
    steps             gradients, accumulation and updates of one step
    evaluation        losses and metrics on held-out rows; the best checkpoint
    checkpoint_store  writes a run's checkpoints, keeps the best, sets damaged ones aside
    run_settings      the settings of a run; its model and the form of its rows follow from them
    distribution      one device, several, or several machines
    guards            end a run early: at a signal, or when its numbers diverge
    pace              running averages, and how many steps one call makes
    summaries         metrics.jsonl, TensorBoard, log lines, progress
    curves            learning curves as a picture
    run_report        reads a run's files, and writes the quickstart's report
"""

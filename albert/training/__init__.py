"""The one trainer and what it needs.

    trainer           the loop: steps, saves, evaluations, stops
    steps             gradients, accumulation and updates of one step
    evaluation        losses and metrics on held-out rows; the best checkpoint
    checkpoint_store  a run's checkpoints: published, kept, the best, damage set aside
    run_settings      how a run goes, and what follows from it for its model and its rows
    distribution      one device, several, or several machines
    guards            signals and diverging numbers
    pace              running averages and speed
    summaries         metrics.jsonl, TensorBoard, log lines, progress
    curves            learning curves as a picture
    run_report        what a run's files say, and the quickstart's report
"""

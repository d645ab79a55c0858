"""Training and evaluation, for any task.

    trainer            the loop: steps, saves, evaluations, stops
    checkpointer       starts, restores and saves a run
    evaluator          evaluates its checkpoints, keeps the best, runs out of patience
    history            position in the data, running averages, skipped steps
    train_state        what a step changes: model, optimizer, counters
    steps              one visible step: forward, loss, gradients, sum over replicas, skip?, update
    evaluation         losses and metrics on held-out rows; the best checkpoint
    checkpoint_store   writes a run's checkpoints, keeps the best, sets damaged ones aside
    run_settings       the settings of a run; its model and the form of its rows follow from them
    engine             what TensorFlow and JAX do differently, behind one interface
    current_engine     which of them this process has
    tensorflow_engine  one of them: graphs, tf.distribute, tf.data
    jax_engine         the other: functional steps, jax.sharding, NumPy batches
    jax_devices        its devices, and the workers that it consists of
    compilation        its step compiled for TPUs that are not there
    divergence         ends a run whose numbers diverge
    preemption         remembers a signal that asks for the end
    step_timer         how many steps one call makes
    summaries          metrics.jsonl, TensorBoard, log lines, progress
    event_file         TensorBoard's files
"""

"""Training and evaluation, for any task.

    trainer            the loop: steps, saves, evaluations, stops
    checkpointer       starts, restores and saves a run
    history            position in the data, running averages, skipped steps, divergence
    train_state        what a step changes: model, optimizer, counters
    steps              one visible step: forward, loss, gradients, sum over replicas, skip?, update
    evaluation         losses and metrics on held-out rows; the best checkpoint; patience
    checkpoint_store   writes a run's checkpoints, keeps the best, sets damaged ones aside
    run_settings       the settings of a run; its model and the form of its rows follow from them
    engine             what TensorFlow and JAX do differently, behind one interface
    current_engine     the engine of this process
    tensorflow_engine  one of them: graphs, tf.distribute, tf.data
    jax_engine         the other: functional steps, jax.sharding, NumPy batches
    jax_devices        its devices and workers
    compilation        its step compiled for TPUs on a machine without any
    summaries          metrics.jsonl, TensorBoard, log lines, progress
"""

"""Training and evaluation, for any task.

    trainer            the loop: steps, saves, evaluations, stops
    checkpointer       starts, restores and saves a run
    history            position in the data, running averages, skipped steps, divergence
    train_state        what a step changes: model, optimizer, counters
    steps              one step: forward, loss, gradients, sum over replicas, skip?, update
    evaluation         losses and metrics on held-out data; the best checkpoint; early stopping
    checkpoint_store   writes a run's checkpoints, keeps the best, renames damaged ones
    run_settings       the settings of a run; its model and batch layout follow from them
    engine             one interface to TensorFlow and JAX
    current_engine     the engine of this process
    tensorflow_engine  TensorFlow: graphs, tf.distribute, tf.data
    jax_engine         JAX: functional steps, jax.sharding, NumPy batches
    jax_devices        devices and workers of JAX
    summaries          metrics.jsonl, TensorBoard, log lines, progress
"""

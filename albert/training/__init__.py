"""Training and evaluation, for any task.

    loop            train(): steps, saves, evaluations, stops
    steps           one step: forward, loss, gradients, skip?, update
    engine          one interface to TensorFlow and JAX
    tf_engine       TensorFlow: graphs, tf.distribute, tf.data
    jax_engine      JAX: functional steps, jax.sharding, NumPy batches
    run             a run's settings, model and optimizer; starts, restores and saves it
    store           a run's checkpoints: written, kept, renamed if damaged
    evaluate        losses and metrics on held-out data; the best checkpoint
    costs           FLOPs and compute parameters of an architecture
    metrics         averages, model FLOPs utilization, divergence; metrics.jsonl, TensorBoard, log lines
"""

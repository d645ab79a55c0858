"""Our side of the data benchmarks: text to ids, text to records, records to batches."""

import record_facts
import serve


def prepare(spec):
    return {
        "tokenize": _tokenize, "make_records": _make_records, "input_pipeline": _input_pipeline,
    }[spec["work"]](spec)


def _tokenize(spec):
    from albert.tokenization import FullTokenizer

    tokenizer = FullTokenizer(None, True, spec["spm_model_file"])
    with open(spec["text"], encoding="utf-8", newline="\n") as stream:
        texts = stream.read().split("\n")
    ids = [i for row in tokenizer.encode_batch(texts) for i in row]
    return lambda: tokenizer.encode_batch(texts), {"ids": ids}


def _make_records(spec):
    from albert import create_pretraining_data
    from albert.cli import flags

    output = spec["outputs"] + ".tfrecord"
    argv = [
        "create_pretraining_data", f"--input_file={spec['text']}", f"--output_file={output}",
        f"--spm_model_file={spec['spm_model_file']}", f"--max_seq_length={spec['length']}",
        f"--max_predictions_per_seq={spec['predictions']}", "--num_processes=1",
        f"--dupe_factor={spec['dupe_factor']}", f"--short_seq_prob={spec['short_seq_prob']}",
    ]

    def turn():
        code = flags.run_command(
            "", create_pretraining_data.define_flags, create_pretraining_data.main, argv,
            takes_arguments=True,
        )
        if code:
            raise RuntimeError(f"create_pretraining_data ended with {code}")

    turn()
    return turn, record_facts.describe(output, spec["length"], spec["predictions"], False)


def _input_pipeline(spec):
    import tensorflow as tf

    from albert.pretraining_data import dynamic_masking, masking
    from albert.records import tf_dataset
    from albert.records.record_files import RecordFiles
    from albert.tasks.pretraining import PretrainingTask

    tf.config.threading.set_intra_op_parallelism_threads(spec["threads"])
    source = RecordFiles.of_flag(spec["records"], "records")
    features = PretrainingTask(spec["length"], spec["predictions"]).feature_spec()
    if spec.get("masks_on_the_fly"):
        settings = masking.MaskingSettings(spec["predictions"])
        features = dynamic_masking.dynamic_masking(source, spec["length"], settings, 1).feature_spec()
    batches = iter(tf_dataset.train_batches(
        source, features, batch_size=spec["batch"], vocab_size=spec["vocab_size"], seed=1
    ))

    def turn():
        return [next(batches) for _ in range(spec["count"] // spec["batch"])]

    facts = record_facts.unmasked_sums if "masks_on_the_fly" in spec else record_facts.sums
    return turn, facts(turn())


serve.serve(prepare)

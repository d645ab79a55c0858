"""Every form in which a model lies in files, opened and written in one place.

    pretrained           a directory, whoever wrote it: its config, vocabulary, facts and weights
    checkpoints          which checkpoint a path means, and what it gives a model
    checkpoint_files     the files of one checkpoint, of either of the next two kinds
    tensor_bundle        TensorFlow's checkpoint files: arrays by name
    tensor_file          a checkpoint in one safetensors file, where TensorFlow is absent
    weights              the tensors of a model's files, by the released names
    sidecars             the JSON file beside a checkpoint
    model_classes        the registry of model classes
    known_tasks          what the name of a task tells of its model
    model_facts          labels, head and kind of a model, checked when read
    tokenizer_files      the vocabulary beside a model, and its settings
    huggingface          Hugging Face's configuration and safetensors
    hf_names             what its weights are called
    hf_tokenizer         its tokenizer.json, written
    tokenizer_json       the same, read
    hf_tensors           its files of tensors, and HDF5
    layouts              what a path is: which kind of model, or none
    archives             packed models, and the cache that they are unpacked to
    hub                  TF-Hub modules, read as data
    tf_models            those that tf-models-official exported
    saved_model          the one place where a SavedModel is written
    model_card           the README.md of a directory that holds a model
    vocabulary_transfer  another vocabulary for the same model
"""

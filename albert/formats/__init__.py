"""Reads and writes models in all their formats.

    pretrained           opens a model of any layout: config, vocabulary, metadata, weights
    model_classes        the registry of model classes
    metadata             labels, task and more of a model, and a run's state, next to a checkpoint
    checkpoints          finds, writes and checks checkpoints, and starts models from them
    tensor_bundle        their contents: arrays by name, in TensorFlow 1's format
    weights              the tensors of any model's files, by their released names
    tokenizer_files      a model's vocabulary and its settings
    huggingface          Hugging Face's configuration
    hf_weights           Hugging Face's weights: names and files
    tokenizer_json       Hugging Face's tokenizer.json
    sentence_files       embeddings of sentence-transformers
    model_hub            downloads a released model by its hub name
    hub                  TF-Hub modules, read as data
    model_card           the README.md of a model's directory
"""

"""Reads and writes models in all their formats.

    pretrained           opens a model of any layout: config, vocabulary, metadata, weights
    layouts              detects the layout of a model at a path
    model_classes        the registry of model classes
    model_metadata       metadata: labels, head and kind of a model, checked when read
    known_tasks          tasks and their labels
    checkpoints          finds a checkpoint and starts models from it
    checkpoint_files     the files of one checkpoint
    tensor_bundle        its contents: arrays by name, in TensorFlow 1's format
    run_states           a run's state, in the JSON file next to a checkpoint
    weights              the tensors of any model's files, by their released names
    tokenizer_files      a model's vocabulary and its settings
    huggingface          Hugging Face's configuration and weights
    hf_names             Hugging Face's names of weights
    hf_tensors           Hugging Face's tensor files: safetensors
    tokenizer_json       Hugging Face's tokenizer.json
    sentence_files       embeddings of sentence-transformers
    torch_file           converts PyTorch's pytorch_model.bin to safetensors
    model_hub            downloads a released model by its hub name
    cache                converted files, in the user's cache
    hub                  TF-Hub modules, read as data
    saved_model          the errors of writing SavedModels
    model_card           the README.md of a model's directory
    used_vocabulary      the part of a vocabulary that a text uses
"""

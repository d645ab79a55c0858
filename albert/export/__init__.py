"""Exports models for other runtimes: TF-Hub, LiteRT.

    hub_export        the SavedModel of `export_to_tfhub`
    model_conversion  LiteRT files, and the comparison of files with models
"""

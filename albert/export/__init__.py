"""Writes models in other forms, for this toolkit and for other runtimes.

    forms             what the commands that convert and export write
    hub_export        the SavedModel of a TF-Hub module
    model_conversion  LiteRT files, and the comparison of files with models
"""

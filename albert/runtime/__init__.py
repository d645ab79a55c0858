"""Processes, progress, seeds.

    workers         worker processes, and handling of signals
    progress        progress, rate and remaining time
    named_dict      dicts whose values have two names each
    seeds           a seed for each purpose
    processor       whether the processor supports bfloat16
    lazy            modules that are imported when they are first used
"""

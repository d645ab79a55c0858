"""Processes, progress, seeds.

    workers         the processor, worker processes, and handling of signals
    progress        progress, rate and remaining time
    named_dict      dicts whose values have two names each
    seeds           a seed for each purpose
"""

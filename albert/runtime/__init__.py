"""Processes, progress, seeds.

    workers         worker processes, and signals that end work in order
    progress        rate of long work, and the time left
    named_dict      dicts whose values have two names each
    seeds           one seed for each purpose
    processor       whether it multiplies in bfloat16
    schedules       numbers that change at steps of a run
"""

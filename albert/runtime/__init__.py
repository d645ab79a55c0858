"""Processes, progress, seeds.

    workers         processes that end with their owner
    progress        how far work is, and how long it will take
    seeds           one seed for each purpose
    schedules       numbers that change at steps of a run
"""

"""Processes, progress, seeds.

    workers         worker processes, and signals that end work in order
    progress        rate of long work, and the time left
    seeds           one seed for each purpose
    schedules       numbers that change at steps of a run
"""

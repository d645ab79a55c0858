"""Comparisons as in the paper, on any text: a grid of settings, each run with several seeds.

    grid    reads a grid: what all runs have in common, and how each setting differs
    runs    makes each of a grid's records, pretraining runs and evaluations, once
    report  means, spreads, and whether the settings come out in the paper's order
    curves  learning curves as a picture
"""

"""Questions of the paper, asked of one's own text: a grid of settings, each with several seeds.

    grid    what all runs have in common, and in what each setting differs
    runs    makes what a grid needs, once each: records, pretraining runs, evaluations
    report  means, spreads, and the paper's order beside the one found
    curves  learning curves as a picture
"""

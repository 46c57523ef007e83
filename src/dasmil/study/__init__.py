"""The workflow: which bags, how they are split, training, cross-validation, search, and what a trained run is for.

Its public names are those of `dasmil`: CohortSpec, train_cohort, cross_validate, search, evaluate, predict. Nothing is
imported here, because the options of the command line are made from `spec`, and `--help` is to stay quick.
"""

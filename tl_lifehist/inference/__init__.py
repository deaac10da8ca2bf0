"""How claims are tested: labels exchanged among equals, documents as units, increments of a path, few units.

Each procedure is a function of plain arrays, so that it can be tried in planted worlds at the size of a run; how often
it errs there stands beside its verdict.
"""

"""The benchmark and the demo: eager, torch.compile and Preheat, side by side on one machine.

models     what is measured          worker     one fresh process, one measurement
suite      the whole run             table      rows as JSON and as a table
demo       a sentence-embedding model with its real weights
"""

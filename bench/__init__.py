"""Benchmarks. They report ratios, because absolute numbers of one machine mean little.

Every number is compared with a peer or a physical limit that is measured in the same run, in turns.
"""

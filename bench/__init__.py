"""How fast is it, beside what else could be done? Ratios only: numbers of one machine mean little.

Every number stands beside a peer or a physical limit measured in the same run, in turns with it.
"""

"""Clip thresholds: by formula, and exact optima with a proof.

| module            | holds                                                                    |
|-------------------|--------------------------------------------------------------------------|
| `formulas`        | thresholds by formula: Banner's, the founding documents', additive model |
| `exact`           | the certified optimum of one law or sample, for one or several languages |
| `blocks`          | the exact step of every block of a matrix                                |
| `sums`            | the sums over codes of a law or a sample                                 |
| `certified`       | branch and bound on these sums                                           |
| `kernels`         | compiled parts that all share                                            |
| `block_kernels`   | compiled branch and bound of one block; derives the bound                |
| `minimax_kernels` | the same for the worst of several languages                              |
"""

"""What `import fairbits` gives, one module for each function; `run` is a package.

`fit` refuses jobs that cannot fit this machine, from `memory_needed`, and `dry_run` measures how long they take.
"""

"""Estimates: what a job takes in time, memory and disk on this machine, before it starts.

`sizes` describes model and text, `counts` derives the work of every stage from them, `rates` measures this machine,
`jobs` lists the stages of commands, and `fit` refuses what cannot fit and names what to lower.
"""

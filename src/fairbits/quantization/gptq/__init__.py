"""From a plan to codes, one block in memory at a time.

`engine` rounds a model block by block: `models.streaming_model` loads and releases the weights of blocks, and
`forward.lockstep` moves all batches of text through them together. `hessian` adds up the statistics of inputs,
`block_rounding` rounds the layers of one block, `columns` is GPTQ's algorithm, and `output_errors` measures the error
of each language. `ranks` shares the work between processes.
"""

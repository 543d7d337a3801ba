"""From a plan to codes, one block in memory at a time.

`engine` rounds a model block by block: `model.streaming_model` loads and releases the weights of blocks, and
`measure.passes.lockstep` moves all batches of text through them together. `hessian` adds up the statistics of inputs,
`block_rounding` rounds one block and `layer` one linear layer, `gptq` is GPTQ's algorithm, and `output_errors` measures
the error of each language. `ranks` shares the work between processes, and `refinement` lets learning improve the codes
of a block.
"""

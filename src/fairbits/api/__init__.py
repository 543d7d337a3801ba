"""The commands of fairbits, one module each; `run` is a package.

A command whose record is long has it in a second module: `critical_bits` belongs to `sweep`.
`generate`, `serve`, `mix`, `languages`, `theory` and `research` have no module here: the command line calls
overlays, serve, language and science directly.
"""

"""The verbs of fairbits, one module each; `run` is a package.

A verb whose record is long has it in a second module: `comparison` belongs to `compare`, `critical_width` to `sweep`,
`trial_tasks` to both.
`generate`, `serve`, `mix`, `languages`, `theory` and `research` have no module here: the command line calls
overlays, serve, language and science directly.
"""

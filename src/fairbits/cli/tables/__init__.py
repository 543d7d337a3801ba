"""The output of the verbs for a terminal of 80 columns, one module per verb; `layout` has the shared parts."""

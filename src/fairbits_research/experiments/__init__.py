"""READ FIRST. Tests of the research notes' predictions: one module per experiment, with a function that takes a
Laboratory and returns a Result; `all_experiments` lists and runs them.

| module              | holds                                                                        |
|---------------------|------------------------------------------------------------------------------|
| `laboratory`        | a model and its text, and the damage of replaced weights to every language   |
| `result`            | question, prediction, design, tables, figure, verdict, what it means         |
| `stored_results`    | the results that come with the package, and the page docs/research/experiments.md |
| `gaps`              | gaps between languages, compared by resampling the same documents            |
| `language_traits`   | traits of languages: damage, activation, tokenization, redundancy            |
| `trait_correlation` | correlations between traits                                                  |
"""

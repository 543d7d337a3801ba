"""The claims of the research notes and the verdicts on them; `all_claims` lists them."""

"""LA-ACIQ as the research notes describe it: kurtosis of layers and languages, checks, risk, certificate."""

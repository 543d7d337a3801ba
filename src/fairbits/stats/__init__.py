"""Statistics of damage per language, paired by document."""

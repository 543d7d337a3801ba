"""What every room uses: errors, records, checks, files, tables, units."""

"""Languages: the catalog, text that comes with fairbits and text of the user, calibration mixes, detection."""

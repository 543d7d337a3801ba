"""Measurements from one pass over text: audits and scores."""

"""Modules that doctest leaves out."""

from importlib.util import find_spec

NEEDS = {"src/fairbits/models/scales/clip_triton.py": "triton"}
"""Modules that cannot be imported, and searched for doctests, without a package that is optional."""

collect_ignore = [file for file, package in NEEDS.items() if find_spec(package) is None]

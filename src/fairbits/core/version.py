"""The version of fairbits, and of the libraries that compute its numbers."""

__version__ = "0.2.0.dev0"
PACKAGES = ("torch", "transformers", "compressed-tensors", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Returns the versions of fairbits, of Python, and of the libraries that compute numbers."""
    import platform  # heavy: `import fairbits` needs the number above alone
    from importlib.metadata import PackageNotFoundError, version

    packages = {"fairbits": __version__, "Python": platform.python_version()}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return packages

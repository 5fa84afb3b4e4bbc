"""What takes too long for `make test`, in named parts: `python -m compat_tests.long`."""
